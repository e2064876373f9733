"""vLLM's own V1 scheduler without a GPU or a model: the published wheel's scheduler, KV-cache manager, block pool and queues
over a pool of blocks that nobody computes on."""

from __future__ import annotations

import functools
import json
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")

BLOCK = 16


@dataclass(frozen=True)
class Engine:
    """What of an engine's configuration its scheduler sees. The names are vLLM's."""

    # With the null block, which is never given out.
    num_gpu_blocks: int
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 2048
    prefix_cache: bool = True
    async_scheduling: bool = True
    # What clients call the model. Its shape is that of none.
    served_as: str | None = None

    @property
    def max_model_len(self) -> int:
        return (self.num_gpu_blocks - 1) * BLOCK

    def scheduler(self, watermark: float = 0.0, scheduler_cls: str | None = None):
        """vLLM's scheduler, or the one `scheduler_cls` names, with everything a GPU would do left out."""
        import torch
        from vllm.config import CacheConfig, DeviceConfig, ModelConfig, SchedulerConfig, VllmConfig
        from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec

        with tempfile.TemporaryDirectory(prefix="kvtide-opt-") as folder:
            shape = {
                "architectures": ["OPTForCausalLM"], "model_type": "opt", "num_hidden_layers": 1, "hidden_size": 16,
                "num_attention_heads": 1, "ffn_dim": 16, "word_embed_proj_dim": 16, "vocab_size": 100,
                "torch_dtype": "float16", "max_position_embeddings": self.max_model_len,
            }  # fmt: skip
            (Path(folder) / "config.json").write_text(json.dumps(shape))
            model = ModelConfig(
                model=folder, skip_tokenizer_init=True, dtype="float16", max_model_len=self.max_model_len,
                served_model_name=self.served_as,
            )  # fmt: skip
            cache = CacheConfig(block_size=BLOCK, enable_prefix_caching=self.prefix_cache)
            cache.num_gpu_blocks = self.num_gpu_blocks
            scheduler_config = SchedulerConfig(
                max_num_seqs=self.max_num_seqs,
                max_num_batched_tokens=self.max_num_batched_tokens,
                max_model_len=self.max_model_len,
                enable_chunked_prefill=True,
                async_scheduling=self.async_scheduling,
                watermark=watermark,
                scheduler_cls=scheduler_cls,
                is_encoder_decoder=False,
            )
            config = VllmConfig(
                model_config=model,
                cache_config=cache,
                scheduler_config=scheduler_config,
                device_config=DeviceConfig("cpu"),
            )
        # What the platform made of it: on a machine without a GPU it may not be what was asked for.
        config.scheduler_config.async_scheduling = self.async_scheduling
        spec = FullAttentionSpec(block_size=BLOCK, num_kv_heads=1, head_size=1, dtype=torch.float16)
        groups = [KVCacheGroupSpec(["layer"], spec)]
        return config.scheduler_config.get_scheduler_cls()(
            vllm_config=config,
            kv_cache_config=KVCacheConfig(
                num_blocks=self.num_gpu_blocks, kv_cache_tensors=[], kv_cache_groups=groups
            ),
            structured_output_manager=NoGrammar(),
            block_size=BLOCK,
            hash_block_size=BLOCK,
        )

    def request(self, name: str, prompt: list[int], output_tokens: int, arrival_s: float, cache_salt: str | None = None):
        """A request that is answered with exactly so many tokens."""
        from vllm.sampling_params import SamplingParams
        from vllm.v1.request import Request

        return Request(
            request_id=name,
            prompt_token_ids=prompt,
            sampling_params=SamplingParams(max_tokens=output_tokens, ignore_eos=True),
            pooling_params=None,
            arrival_time=arrival_s,
            cache_salt=cache_salt,
            block_hasher=block_hasher() if self.prefix_cache else None,
        )


class NoGrammar:
    """A structured-output manager of requests without structure: every token will do."""

    def __getattr__(self, name):
        return lambda *args, **kwargs: True


@functools.cache
def block_hasher():
    """vLLM's, as the engine makes it with prefix caching."""
    from vllm.utils.hashing import sha256
    from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash

    init_none_hash(sha256)
    return get_request_block_hasher(BLOCK, sha256)


def sampled(scheduler, output) -> list[bool]:
    """Which of the requests in a step that has just been planned will have a token at its end."""
    requests = scheduler.requests
    return [not requests[request_id].is_prefill_chunk for request_id in output.num_scheduled_tokens]


def answer(scheduler, output, samples: list[bool], token_of):
    """The step is done: one token for whom `samples` says so. Returns the names of those who got it."""
    from vllm.v1.outputs import ModelRunnerOutput

    ids = list(output.num_scheduled_tokens)
    tokens, answered = [], []
    for request_id, samples_one in zip(ids, samples, strict=True):
        request = scheduler.requests.get(request_id)
        if samples_one and request is not None:
            tokens.append([token_of(request)])
            answered.append(request_id)
        else:
            tokens.append([])
    result = ModelRunnerOutput(
        req_ids=ids, req_id_to_index={id: index for index, id in enumerate(ids)}, sampled_token_ids=tokens
    )
    return answered, result
