"""Records how much attention each block of a conversation gets while its answer is generated: docs/ATTENTION.md.

Needs torch and transformers, which nothing else here does:

    python record_attention.py --model Qwen/Qwen2.5-0.5B --prompts prompts.txt --answer-tokens 512 attention.jsonl

Prompts are lines of text, or objects {"prompt": "…"} where the file ends in .jsonl: those may have line breaks, and an "answer" that was
given. Then its tokens are read instead of the model's own, as many at a time as a block has, which is as many times faster.

Without a model, a tiny one with random weights shows that the way is open (--tiny); what it attends to means nothing.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path


class Unrecordable(Exception):
    """Why nothing can be recorded, for people."""


def block_shares(rows: list[list[float]], block_tokens: int, first_token: int) -> list[float]:
    """The mean of rows of attention over one block of queries, added up over blocks of keys.

    `rows[q]` are the weights of query `first_token + q` over tokens `0..=first_token + q`.
    """
    blocks = (first_token + len(rows) - 1) // block_tokens + 1
    shares = [0.0] * blocks
    for row in rows:
        for token, weight in enumerate(row):
            shares[token // block_tokens] += weight
    total = sum(shares)
    return [round(share / total, 6) for share in shares]


def conversation(weights: Iterator[list[float]], prompt_tokens: int, block_tokens: int) -> dict | None:
    """A line of the file from the weights of each token in turn; None if it has no full block of an answer.

    The weights start with the prompt's last full block. What the prompt has beyond its full blocks counts as the answer's.
    """
    prompt_blocks = prompt_tokens // block_tokens
    rows, queries, first = [], [], (prompt_blocks - 1) * block_tokens
    for weight in weights:
        queries.append(weight)
        if len(queries) == block_tokens:
            rows.append(block_shares(queries, block_tokens, first))
            first, queries = first + block_tokens, []
    return {"prompt_blocks": prompt_blocks, "rows": rows} if len(rows) > 1 else None


def mean_row(attentions, query: int, tokens: int) -> list[float]:
    """What one query of a pass paid to each of so many tokens: the mean over layers and heads.

    A layer with a window has weights of the latest tokens alone; a layer without attention has none, and does not count.
    """
    import torch

    total, layers = torch.zeros(tokens), 0
    for layer in attentions:
        if layer is not None:
            # [1, heads, queries, keys], the keys of later queries of the pass at its end.
            later = layer.shape[2] - 1 - query
            weights = layer[0, :, query, : layer.shape[3] - later].float().mean(dim=0).cpu()
            total[tokens - len(weights) :] += weights
            layers += 1
    if not layers:
        raise Unrecordable("the model says nothing of its attention: it has none, or not that of `eager`")
    return (total / layers).tolist()


def given(model, tokens, start: int, block_tokens: int) -> Iterator[list[float]]:
    """Weights of the tokens from `start` on, each over all tokens up to itself, of a text that is there: a block of queries at a time."""
    import torch

    with torch.no_grad():
        past = model(tokens[:, :start], use_cache=True).past_key_values if start else None
        for at in range(start, tokens.shape[1], block_tokens):
            block = tokens[:, at : at + block_tokens]
            out = model(block, past_key_values=past, use_cache=True, output_attentions=True)
            past = out.past_key_values
            for query in range(block.shape[1]):
                yield mean_row(out.attentions, query, at + query + 1)


class Sampler:
    """Which token follows: the likeliest, or one drawn."""

    def __init__(self, temperature: float, seed: int):
        import torch

        self.temperature, self.draws = temperature, torch.Generator().manual_seed(seed)

    def following(self, logits):
        import torch

        logits = logits.float().cpu()
        if self.temperature == 0:
            return logits.argmax(dim=-1, keepdim=True)
        return torch.multinomial((logits / self.temperature).softmax(dim=-1), 1, generator=self.draws)


def generated(model, tokens, start: int, answer_tokens: int, sampler: Sampler) -> Iterator[list[float]]:
    """The same of the rest of a prompt and of what the model goes on with, token by token until it has enough or wants to end."""
    import torch

    ends = getattr(model.generation_config, "eos_token_id", None)
    ends = set(ends) if isinstance(ends, list) else {ends}
    prompt_tokens = tokens.shape[1]
    with torch.no_grad():
        past = model(tokens[:, :start], use_cache=True).past_key_values if start else None
        token = tokens[:, start : start + 1]
        for position in range(start, prompt_tokens + answer_tokens):
            out = model(token, past_key_values=past, use_cache=True, output_attentions=True)
            past = out.past_key_values
            yield mean_row(out.attentions, 0, position + 1)
            if position + 1 < prompt_tokens:
                token = tokens[:, position + 1 : position + 2]
            else:
                token = sampler.following(out.logits[:, -1]).to(tokens.device)
                if token.item() in ends:
                    return


def tiny():
    """A model of random weights, and prompts of random tokens."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(1)
    config = LlamaConfig(
        vocab_size=128,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=1024,
        attn_implementation="eager",
    )
    prompts = [(torch.randint(0, 128, (1, length)), None) for length in (64, 100, 40, 80)]
    return LlamaForCausalLM(config).eval(), prompts


def texts(path: Path) -> list[dict]:
    """The prompts of a file, with the answers that were given to them if they are there."""
    lines = path.read_text(encoding="utf-8").split("\n")
    numbered = [(number, line.strip()) for number, line in enumerate(lines, 1) if line.strip()]
    if path.suffix != ".jsonl":
        return [{"prompt": line} for _, line in numbered]
    objects = []
    for number, line in numbered:
        try:
            one = json.loads(line)
        except json.JSONDecodeError as error:
            raise Unrecordable(f"{path}:{number}: {error}") from None
        if not isinstance(one, dict) or not isinstance(one.get("prompt"), str):
            raise Unrecordable(f'{path}:{number}: no field "prompt" with a text')
        if not isinstance(one.get("answer"), str | None):
            raise Unrecordable(f'{path}:{number}: "answer" is not a text')
        objects.append(one)
    return objects


def loaded(name: str, path: Path, device: str):
    """A model of Hugging Face, and the tokens of prompts and of answers."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    found = texts(path)
    tokenizer = AutoTokenizer.from_pretrained(name)
    model = AutoModelForCausalLM.from_pretrained(name, attn_implementation="eager").eval().to(device)

    def tokens(text: str | None, is_start: bool):
        if text is None:
            return None
        return tokenizer(text, return_tensors="pt", add_special_tokens=is_start).input_ids.long().to(device)

    return model, [(tokens(one["prompt"], True), tokens(one.get("answer"), False)) for one in found]


def recorded(model, prompt, answer, block_tokens: int, answer_tokens: int, sampler: Sampler) -> dict | str:
    """A line of the file, or why there is none."""
    import torch

    most = getattr(model.config, "max_position_embeddings", None) or sys.maxsize
    prompt_tokens = prompt.shape[1]
    if prompt_tokens < block_tokens:
        return "shorter than a block"
    if prompt_tokens + block_tokens > most:
        return f"too long for the model's {most} tokens"
    answer_tokens = min(answer_tokens, most - prompt_tokens)
    start = (prompt_tokens // block_tokens - 1) * block_tokens
    if answer is None:
        weights = generated(model, prompt, start, answer_tokens, sampler)
    else:
        weights = given(model, torch.cat([prompt, answer[:, :answer_tokens]], dim=1), start, block_tokens)
    return conversation(weights, prompt_tokens, block_tokens) or "without a full block of an answer"


def record(out, model, name: str, prompts: list, args) -> int:
    """Writes the file; how many conversations are in it."""
    sampler = Sampler(args.temperature, args.seed)
    out.write(json.dumps({"kvtide_attention": 1, "block_tokens": args.block_tokens, "model": name}) + "\n")
    kept, left_out = 0, {}
    for number, (prompt, answer) in enumerate(prompts, 1):
        if sys.stderr.isatty():
            print(f"\r{number} of {len(prompts)}", end="", file=sys.stderr)
        line = recorded(model, prompt, answer, args.block_tokens, args.answer_tokens, sampler)
        if isinstance(line, str):
            left_out[line] = left_out.get(line, 0) + 1
        else:
            out.write(json.dumps(line) + "\n")
            kept += 1
    if sys.stderr.isatty():
        print("\r", end="", file=sys.stderr)
    for why, count in left_out.items():
        print(f"left out {count} of {len(prompts)} prompts: {why}", file=sys.stderr)
    if kept < 2:
        raise Unrecordable(f"{kept} conversations of {len(prompts)} prompts; it takes two")
    return kept


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--model", help="a name or folder that transformers can load")
    source.add_argument("--tiny", action="store_true", help="a tiny model with random weights")
    parser.add_argument("--prompts", type=Path, help='a prompt a line; .jsonl: {"prompt": …, "answer": …}, the answer if it was given')
    parser.add_argument("--block-tokens", type=int, default=16)
    parser.add_argument("--answer-tokens", type=int, default=256, help="at most so many; the model may end before")
    parser.add_argument("--temperature", type=float, default=0.0, help="0 takes the likeliest token, 1 draws as the model says")
    parser.add_argument("--seed", type=int, default=1, help="of what is drawn")
    parser.add_argument("--device", default="cpu", help="such as cuda")
    parser.add_argument("out", type=Path)
    return parser


def main() -> int:
    parser = arguments()
    args = parser.parse_args()
    if not args.tiny and args.prompts is None:
        parser.error("--model needs --prompts")
    if not 1 <= args.block_tokens <= 4096 or args.answer_tokens < args.block_tokens:
        parser.error("--block-tokens is from 1 to 4096, and --answer-tokens a block at least")
    if not 0 <= args.temperature <= 100:
        parser.error("--temperature is from 0 to 100")
    part = args.out.with_name(f".{args.out.name}.{os.getpid()}.part")
    try:
        # Beside its place, which it takes when it is whole; before a model is loaded in vain.
        with part.open("w", encoding="utf-8") as out:
            model, prompts = tiny() if args.tiny else loaded(args.model, args.prompts, args.device)
            kept = record(out, model, "tiny, random weights" if args.tiny else args.model, prompts, args)
        os.replace(part, args.out)
    except ImportError as error:
        parser.error(f"{error}; this script needs torch and transformers")
    except (Unrecordable, OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    finally:
        with contextlib.suppress(FileNotFoundError):
            part.unlink()
    print(f"{args.out}: {kept} conversations of {len(prompts)} prompts", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
