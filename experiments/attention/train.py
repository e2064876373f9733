"""Trains a small decoder on the sources of Python's standard library, and writes it as a folder that transformers loads.

    python train.py FOLDER --minutes 15

FOLDER/model gets weights and tokenizer, FOLDER/given.jsonl conversations of files that were held out (a prompt and how the file goes on), and
FOLDER/prompts.jsonl the same prompts alone, which the model goes on with itself. One thread, CPU.
"""

from __future__ import annotations

import argparse
import json
import sysconfig
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

SEED = 1
PIECES = 1024
# Shorter sequences first, for they cost less; then as long as what is recorded.
SHORT, LONG, SHORT_SHARE = 384, 1536, 0.6
BATCH_TOKENS = 3072
PROMPT, ANSWER = 1008, 528


def sources() -> list[str]:
    """The library's own files, in order of their names."""
    root = Path(sysconfig.get_path("stdlib"))
    left_out = {"site-packages", "test", "tests", "idle_test", "__pycache__"}
    files = [path for path in sorted(root.rglob("*.py")) if not left_out & set(path.relative_to(root).parts)]
    texts = (path.read_text(encoding="utf-8", errors="ignore") for path in files)
    return [text for text in texts if len(text) > 2000]


def tokenizer_of(texts: list[str]) -> PreTrainedTokenizerFast:
    """Pairs of bytes, merged where they are frequent."""
    pieces = Tokenizer(models.BPE())
    pieces.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    pieces.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    pieces.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=PIECES, initial_alphabet=alphabet, show_progress=False))
    return PreTrainedTokenizerFast(tokenizer_object=pieces, clean_up_tokenization_spaces=False)


def decoder() -> LlamaForCausalLM:
    """Four layers of six heads, 192 wide."""
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=PIECES,
            hidden_size=192,
            intermediate_size=512,
            num_hidden_layers=4,
            num_attention_heads=6,
            num_key_value_heads=2,
            max_position_embeddings=2048,
            tie_word_embeddings=True,
            bos_token_id=None,
            eos_token_id=None,
        )
    )


def batches(stream: torch.Tensor, length: int, draw: torch.Generator) -> Iterator[torch.Tensor]:
    """Stretches of so many tokens from anywhere, together as many as a batch has."""
    while True:
        starts = torch.randint(0, len(stream) - length - 1, (max(BATCH_TOKENS // length, 1),), generator=draw)
        yield torch.stack([stream[start : start + length] for start in starts.tolist()])


def loss_of(model: LlamaForCausalLM, tokens: torch.Tensor) -> torch.Tensor:
    return model(tokens, labels=tokens).loss


def train(model: LlamaForCausalLM, stream: torch.Tensor, minutes: float) -> int:
    """Learns for so many minutes of this process's own time; how many tokens it saw."""
    draw = torch.Generator().manual_seed(SEED)
    adam = torch.optim.AdamW(model.parameters(), lr=0.0, betas=(0.9, 0.98), weight_decay=0.05)
    short, long = batches(stream, SHORT, draw), batches(stream, LONG, draw)
    start, seen, step = time.process_time(), 0, 0
    while (part := (time.process_time() - start) / (60 * minutes)) < 1.0:
        rate = 2e-3 * min((step + 1) / 50, 1.0) * (1.0 - 0.95 * part)
        for group in adam.param_groups:
            group["lr"] = rate
        tokens = next(short if part < SHORT_SHARE else long)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = loss_of(model, tokens)
        adam.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        adam.step()
        seen, step = seen + tokens.numel(), step + 1
        if step % 20 == 0:
            print(f"step {step}, {seen} tokens of {tokens.shape[1]}, loss {loss.item():.3f}, {100 * part:.0f} %", flush=True)
    return seen


def held_out_loss(model: LlamaForCausalLM, tokens: list[torch.Tensor]) -> tuple[float, float]:
    """Nats a token early in a stretch and late in it: what lies far back is of use if the second is less."""
    early, late = [], []
    with torch.no_grad():
        for row in tokens:
            logits = model(row[None, :-1]).logits[0]
            losses = torch.nn.functional.cross_entropy(logits, row[1:], reduction="none")
            early.append(losses[64:256].mean().item())
            late.append(losses[-512:].mean().item())
    return sum(early) / len(early), sum(late) / len(late)


def write_conversations(folder: Path, tokenizer: PreTrainedTokenizerFast, rows: list[torch.Tensor]) -> None:
    with (folder / "given.jsonl").open("w") as given, (folder / "prompts.jsonl").open("w") as prompts:
        for row in rows:
            prompt, answer = tokenizer.decode(row[:PROMPT]), tokenizer.decode(row[PROMPT:])
            given.write(json.dumps({"prompt": prompt, "answer": answer}) + "\n")
            prompts.write(json.dumps({"prompt": prompt}) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--minutes", type=float, default=15.0, help="of the processor's time")
    parser.add_argument("--conversations", type=int, default=128)
    args = parser.parse_args()
    torch.manual_seed(SEED)
    torch.set_num_threads(1)
    texts = sources()
    learned = [text for index, text in enumerate(texts) if index % 8]
    held_out = texts[::8]
    tokenizer = tokenizer_of(learned)
    encode = lambda text: torch.tensor(tokenizer(text).input_ids)  # noqa: E731
    stream = torch.cat([encode(text) for text in learned])
    ends = [encode(text) for text in held_out]
    length = PROMPT + ANSWER
    stretches = [file[at : at + length] for file in ends for at in range(0, len(file) - length, length)]
    every = max(len(stretches) // args.conversations, 1)
    rows = stretches[::every][: args.conversations]
    model = decoder()
    weights = sum(weight.numel() for weight in model.parameters())
    print(f"{len(learned)} files, {len(stream)} tokens; {weights} weights; {len(rows)} conversations of other files", flush=True)
    seen = train(model, stream, args.minutes)
    early, late = held_out_loss(model.eval(), rows[:32])
    print(f"saw {seen} tokens; held out: {early:.3f} nats a token early, {late:.3f} late in a stretch")
    args.folder.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(args.folder / "model")
    tokenizer.save_pretrained(args.folder / "model")
    write_conversations(args.folder, tokenizer, rows)


if __name__ == "__main__":
    main()
