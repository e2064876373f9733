"""Records how much attention each block of a conversation gets while its answer is generated: docs/ATTENTION.md.

Needs torch and transformers, which nothing else here does:

    python record_attention.py --model Qwen/Qwen2.5-0.5B --prompts prompts.txt --answer-tokens 512 attention.jsonl

Without a model, a tiny one with random weights shows that the way is open (--tiny); what it attends to means nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path


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

    The prompt is cut to whole blocks by whoever calls.
    """
    prompt_blocks = prompt_tokens // block_tokens
    rows, queries, first = [], [], prompt_tokens - block_tokens
    for weight in weights:
        queries.append(weight)
        if len(queries) == block_tokens:
            rows.append(block_shares(queries, block_tokens, first))
            first, queries = first + block_tokens, []
    return {"prompt_blocks": prompt_blocks, "rows": rows} if len(rows) > 1 else None


def attended(model, tokens, prompt_tokens: int, block_tokens: int, answer_tokens: int) -> Iterator[list[float]]:
    """Weights of the prompt's last block of tokens and of those generated after it, each over all tokens up to itself: means over
    layers and heads."""
    import torch

    def mean(attentions) -> list[float]:
        # A layer at a time: [1, heads, 1, keys].
        total = sum(layer[0, :, -1, :].float().mean(dim=0) for layer in attentions)
        return (total / len(attentions)).tolist()

    with torch.no_grad():
        past, at = None, prompt_tokens - block_tokens
        if at > 0:
            past = model(tokens[:, :at], use_cache=True).past_key_values
        token = tokens[:, at : at + 1]
        for position in range(at, prompt_tokens + answer_tokens):
            out = model(token, past_key_values=past, use_cache=True, output_attentions=True)
            past = out.past_key_values
            yield mean(out.attentions)
            following = out.logits[:, -1:].argmax(dim=-1)
            token = tokens[:, position + 1 : position + 2] if position + 1 < prompt_tokens else following


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
    prompts = [torch.randint(0, 128, (1, length)) for length in (64, 100, 40, 80)]
    return LlamaForCausalLM(config).eval(), prompts


def loaded(name: str, path: Path):
    """A model of Hugging Face, and the prompts of a file, a line each."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(name)
    model = AutoModelForCausalLM.from_pretrained(name, attn_implementation="eager").eval()
    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    return model, [tokenizer(line, return_tensors="pt").input_ids for line in lines]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--model", help="a name or folder that transformers can load")
    source.add_argument("--tiny", action="store_true", help="a tiny model with random weights")
    parser.add_argument("--prompts", type=Path, help="a prompt a line")
    parser.add_argument("--block-tokens", type=int, default=16)
    parser.add_argument("--answer-tokens", type=int, default=256)
    parser.add_argument("out", type=Path)
    args = parser.parse_args()
    if not args.tiny and args.prompts is None:
        parser.error("--model needs --prompts")
    if not 1 <= args.block_tokens <= 4096 or args.answer_tokens < args.block_tokens:
        parser.error("--block-tokens is from 1 to 4096, and --answer-tokens a block at least")
    try:
        model, prompts = tiny() if args.tiny else loaded(args.model, args.prompts)
    except ImportError as error:
        parser.error(f"{error}; this script needs torch and transformers")
    name = "tiny, random weights" if args.tiny else args.model
    block = args.block_tokens
    # Beside its place, which it takes when it is whole.
    with tempfile.NamedTemporaryFile("w", dir=args.out.parent, delete=False, encoding="utf-8") as out:
        out.write(json.dumps({"kvtide_attention": 1, "block_tokens": block, "model": name}) + "\n")
        kept = 0
        for tokens in prompts:
            prompt_tokens = tokens.shape[1] // block * block
            if prompt_tokens == 0:
                continue
            weights = attended(model, tokens, prompt_tokens, block, args.answer_tokens)
            line = conversation(weights, prompt_tokens, block)
            if line is not None:
                out.write(json.dumps(line) + "\n")
                kept += 1
    os.replace(out.name, args.out)
    print(f"{args.out}: {kept} conversations of {len(prompts)} prompts", file=sys.stderr)
    return 0 if kept > 1 else 1


if __name__ == "__main__":
    sys.exit(main())
