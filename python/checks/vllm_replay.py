"""Drives vLLM's own V1 scheduler over a trace, without a GPU or a model, with and without kvtide.

vLLM's scheduler, KV-cache manager, block pool and queues are those of the published wheel. Only what surrounds them is
played: requests arrive as the trace says, a step takes as long as kvtide's roofline says (`envs/src/cost/roofline.rs`),
every finished prefill or decode returns one token. So the numbers compare with `kvtide simulate` on the same trace.

Prints one JSON object a policy: `default`, `fixed:W`, `table:PATH`, `shadow:PATH`.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import sys
import tempfile
import time
from pathlib import Path

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")


class Roofline:
    """Llama 3 8B in bf16 on an RTX 4090, as kvtide's `llama-3-8b@rtx-4090`."""

    layers, heads, kv_heads, head_dim, hidden = 32, 32, 8, 128, 4096
    layer_params = layers * (hidden * head_dim * (2 * heads + 2 * kv_heads) + 3 * hidden * 14_336)
    head_params = hidden * 128_256
    flops, bandwidth = 165.2e12 * 0.7, 1008e9 * 0.8
    step_fixed, sequence_fixed = 3e-3, 15e-6
    kv_bytes = 2 * layers * kv_heads * head_dim * 2

    context_token = kv_bytes / bandwidth
    attention_pair = 4 * layers * heads * head_dim / flops

    @classmethod
    def step_us(cls, decodes: list[int], chunks: list[tuple[int, int]]) -> int:
        """Of decodes, each with its context, and prompt chunks, each (context, tokens)."""
        sequences = len(decodes) + len(chunks)
        tokens = len(decodes) + sum(tokens for _, tokens in chunks)
        seconds = cls.step_fixed
        seconds += max(tokens * 2 * cls.layer_params / cls.flops, cls.layer_params * 2 / cls.bandwidth)
        seconds += max(sequences * 2 * cls.head_params / cls.flops, cls.head_params * 2 / cls.bandwidth)
        seconds += sum(decodes) * cls.context_token
        for context, k in chunks:
            pairs = k * context + k * (k + 1) / 2
            seconds += max(pairs * cls.attention_pair, (context + k) * cls.context_token)
        seconds += sequences * cls.sequence_fixed
        return max(round(seconds * 1e6), 1)


class Driver:
    """One scheduler, one trace, one clock."""

    def __init__(self, trace: list[dict], scheduler, slo_us: tuple[int, int, int]) -> None:
        self.trace, self.scheduler = trace, scheduler
        self.ttft_us, self.tpot_us, self.stall_us = slo_us
        self.now_us = 0
        self.records = [None] * len(trace)
        self.steps = self.preemptions = 0
        self.schedule_s = 0.0
        self.watermarks: dict[int, int] = {}

    def run(self) -> dict:
        scheduler, trace = self.scheduler, self.trace
        arrived, in_flight = 0, None
        while True:
            while arrived < len(trace) and trace[arrived]["arrival_us"] <= self.now_us:
                scheduler.add_request(self.request(arrived))
                arrived += 1
            planned = self.plan() if scheduler.requests else None
            if planned is None and in_flight is None:
                if arrived == len(trace):
                    if scheduler.requests:
                        raise SystemExit("stalled")
                    return self.summary()
                self.now_us = trace[arrived]["arrival_us"]
                continue
            previous, in_flight = in_flight, planned
            if planned is not None:
                start_us = max(self.now_us, previous["ends_us"]) if previous else self.now_us
                planned["ends_us"] = start_us + planned["took_us"]
            if not scheduler.scheduler_config.async_scheduling:
                previous, in_flight = in_flight, None
            if previous is not None:
                self.now_us = max(self.now_us, previous["ends_us"])
                self.complete(previous)

    def request(self, index: int):
        from vllm.sampling_params import SamplingParams
        from vllm.v1.request import Request

        row = self.trace[index]
        # Tokens nobody else has: a prefix is shared with nobody but oneself before a preemption.
        prompt = list(range(index << 20, (index << 20) + row["prompt_tokens"]))
        self.records[index] = {"first": None, "last": None, "stall": 0, "tokens": 0}
        return Request(
            request_id=str(index),
            prompt_token_ids=prompt,
            sampling_params=SamplingParams(max_tokens=row["output_tokens"], ignore_eos=True),
            pooling_params=None,
            arrival_time=row["arrival_us"] * 1e-6,
            block_hasher=HASHER,
        )

    def plan(self) -> dict | None:
        scheduler = self.scheduler
        started = time.thread_time()
        output = scheduler.schedule()
        self.schedule_s += time.thread_time() - started
        self.preemptions += len(output.preempted_req_ids or ())
        if output.total_num_scheduled_tokens == 0:
            return None
        self.steps += 1
        blocks = scheduler.kv_cache_manager.watermark_blocks
        self.watermarks[blocks] = self.watermarks.get(blocks, 0) + 1
        decodes, chunks, samples = [], [], []
        for request_id, tokens in output.num_scheduled_tokens.items():
            request = scheduler.requests[request_id]
            context = request.num_computed_tokens - tokens
            # Of a request that has its first token, or will have once the step before is done.
            is_decode = tokens == 1 and context >= request.num_prompt_tokens
            if is_decode:
                # Those computed before and the one being computed.
                decodes.append(context + 1)
            else:
                chunks.append((context, tokens))
            samples.append(not request.is_prefill_chunk)
        return {"output": output, "samples": samples, "took_us": Roofline.step_us(decodes, chunks)}

    def complete(self, step: dict) -> None:
        from vllm.v1.outputs import ModelRunnerOutput

        ids = list(step["output"].num_scheduled_tokens)
        tokens = []
        for request_id, samples in zip(ids, step["samples"], strict=True):
            request = self.scheduler.requests.get(request_id)
            if not samples or request is None:
                tokens.append([])
                continue
            index = int(request_id)
            tokens.append([(index << 20) + request.num_tokens])
            self.token(index)
        result = ModelRunnerOutput(
            req_ids=ids, req_id_to_index={id: index for index, id in enumerate(ids)}, sampled_token_ids=tokens
        )
        self.scheduler.update_from_output(step["output"], result)

    def token(self, index: int) -> None:
        record = self.records[index]
        if record["first"] is None:
            record["first"] = self.now_us
        else:
            record["stall"] = max(record["stall"], self.now_us - record["last"])
        record["last"] = self.now_us
        record["tokens"] += 1

    def summary(self) -> dict:
        attained, ttfts = 0, []
        for row, record in zip(self.trace, self.records, strict=True):
            assert record["tokens"] == row["output_tokens"], "every request is answered in full"
            ttft = record["first"] - row["arrival_us"]
            ttfts.append(ttft)
            gaps = record["tokens"] - 1
            tpot = (record["last"] - record["first"]) / gaps if gaps else 0
            attained += ttft <= self.ttft_us and tpot <= self.tpot_us and record["stall"] <= self.stall_us
        ttfts.sort()
        summary = {
            "requests": len(self.trace),
            "slo_attainment": round(attained / len(self.trace), 4),
            "preemptions": self.preemptions,
            "steps": self.steps,
            "makespan_s": self.now_us * 1e-6,
            "ttft_p50_ms": ttfts[len(ttfts) // 2] / 1000,
            "ttft_p99_ms": ttfts[len(ttfts) * 99 // 100] / 1000,
            "schedule_us_per_step": round(self.schedule_s / self.steps * 1e6, 1),
            "watermark_blocks": {str(k): v for k, v in sorted(self.watermarks.items())},
        }
        tide = getattr(self.scheduler, "kvtide", None)
        if tide is not None:
            summary["kvtide"] = {name: tide.metrics.of(name) for name in
                                 ("decisions", "overrides", "fallbacks", "errors", "reloads")}  # fmt: skip
        return summary


def make_scheduler(options, watermark: float, scheduler_cls: str | None):
    """vLLM's scheduler over a pool of `options.blocks` blocks, with everything a GPU would do left out."""
    import torch
    from vllm.config import CacheConfig, DeviceConfig, ModelConfig, SchedulerConfig, VllmConfig
    from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec

    folder = Path(tempfile.mkdtemp(prefix="kvtide-opt-"))
    shape = {
        "architectures": ["OPTForCausalLM"], "model_type": "opt", "num_hidden_layers": 1, "hidden_size": 16,
        "num_attention_heads": 1, "ffn_dim": 16, "word_embed_proj_dim": 16, "vocab_size": 100, "torch_dtype": "float16",
        "max_position_embeddings": options.max_model_len,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(shape))
    model = ModelConfig(
        model=str(folder), skip_tokenizer_init=True, dtype="float16", max_model_len=options.max_model_len
    )
    cache = CacheConfig(block_size=16, enable_prefix_caching=options.prefix_cache)
    cache.num_gpu_blocks = options.blocks
    scheduler_config = SchedulerConfig(
        max_num_seqs=options.max_num_seqs,
        max_num_batched_tokens=options.max_num_batched_tokens,
        max_model_len=options.max_model_len,
        enable_chunked_prefill=True,
        async_scheduling=not options.sync,
        watermark=watermark,
        scheduler_cls=scheduler_cls,
        is_encoder_decoder=False,
    )
    config = VllmConfig(
        model_config=model, cache_config=cache, scheduler_config=scheduler_config, device_config=DeviceConfig("cpu")
    )
    # What the platform made of it: on a machine without a GPU it may not be what was asked for.
    config.scheduler_config.async_scheduling = not options.sync
    spec = FullAttentionSpec(block_size=16, num_kv_heads=1, head_size=1, dtype=torch.float16)
    groups = [KVCacheGroupSpec(["layer"], spec)]
    kv_cache_config = KVCacheConfig(num_blocks=options.blocks, kv_cache_tensors=[], kv_cache_groups=groups)

    class NoGrammar:
        """A structured-output manager of requests without structure: every token will do."""

        def __getattr__(self, name):
            return lambda *args, **kwargs: True

    cls = config.scheduler_config.get_scheduler_cls()
    return cls(
        vllm_config=config,
        kv_cache_config=kv_cache_config,
        structured_output_manager=NoGrammar(),
        block_size=16,
        hash_block_size=16,
    )


HASHER = None


def main() -> None:
    global HASHER
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trace", type=Path, required=True, help="kvtide JSON Lines")
    parser.add_argument("--policy", action="append", required=True)
    parser.add_argument("--blocks", type=int, default=2588)
    parser.add_argument("--max-num-seqs", type=int, default=256)
    parser.add_argument("--max-num-batched-tokens", type=int, default=2048)
    parser.add_argument("--max-model-len", type=int)
    parser.add_argument("--sync", action="store_true")
    parser.add_argument("--no-prefix-cache", dest="prefix_cache", action="store_false")
    options = parser.parse_args()
    options.max_model_len = options.max_model_len or (options.blocks - 1) * 16
    trace = [json.loads(line) for line in options.trace.read_text().splitlines()]
    trace.sort(key=lambda row: row["arrival_us"])
    # As kvtide does: the clock begins with the first arrival.
    first_us = trace[0]["arrival_us"]
    for row in trace:
        row["arrival_us"] -= first_us

    from vllm.utils.hashing import sha256
    from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash

    if options.prefix_cache:
        init_none_hash(sha256)
        HASHER = get_request_block_hasher(16, sha256)
    for policy in options.policy:
        kind, _, value = policy.partition(":")
        watermark, scheduler_cls = 0.0, None
        os.environ.pop("KVTIDE_TABLE", None)
        if kind == "fixed":
            watermark = float(value)
        elif kind in ("table", "shadow"):
            scheduler_cls = "kvtide.vllm.Scheduler"
            os.environ.update(KVTIDE_TABLE=value, KVTIDE_MODE="act" if kind == "table" else "shadow")
            os.environ["KVTIDE_PREFILL_NS_PER_TOKEN"] = str(2 * Roofline.layer_params / Roofline.flops * 1e9)
            os.environ["KVTIDE_ATTENTION_NS_PER_TOKEN_PAIR"] = str(Roofline.attention_pair * 1e9)
        elif kind != "default":
            sys.exit(f"no policy {policy!r}")
        scheduler = make_scheduler(options, watermark, scheduler_cls)
        driver = Driver(trace, scheduler, (2_000_000, 100_000, 3_000_000))
        if kind in ("table", "shadow"):
            scheduler.kvtide.clock = lambda: driver.now_us * 1e-6
        # Otherwise every policy pays for the objects of those before it.
        gc.collect()
        gc.disable()
        summary = driver.run()
        gc.enable()
        name = policy if kind in ("default", "fixed") else f"{kind}:{Path(value).name}"
        print(json.dumps({"policy": name, **summary}), flush=True)
        del driver, scheduler


if __name__ == "__main__":
    main()
