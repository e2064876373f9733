"""Prints the results as Markdown tables: experiments/run.sh table"""
import pathlib
import re

RESULTS = pathlib.Path(__file__).parent / "results"
SCENARIOS = [
    "chat-24g", "chat-24g-generated", "chat-80g", "reasoning", "reasoning-open", "reasoning-core", "reasoning-core-open",
    "reasoning-watermark", "reasoning-watermark-open", "agentic", "agentic-coding", "chat-24g-by-generalist",
    "chat-80g-by-generalist", "reasoning-by-generalist", "agentic-by-generalist",
]
ROW = re.compile(r"^(\S+)\s+([\d.]+) %\s+(?:reference|\S+ \[.*?\] pts)\s+\d+\s+(\S+ m?s)\s+(\S+ m?s)\s+(\S+ m?s)\s+(\d+)")
FEWER = re.compile(r"-?\d+ % \[-?\d+, -?\d+\]|-(?=\s)")


def seconds(text):
    value, unit = text.split()
    return float(value) * (0.001 if unit == "ms" else 1.0)


def read(path):
    """Rows by policy, and what each has fewer violations than, by reference."""
    rows, fewer, references = {}, {}, None
    for line in path.read_text().splitlines():
        if line.startswith("fewer violations than"):
            references = [name for name in line.split()[3:] if name not in ("load", "at", "90", "%")]
        elif references is None and (row := ROW.match(line)):
            name, attained, ttft, _, wait, preemptions = row.groups()
            rows[name] = dict(attained=float(attained), ttft=seconds(ttft), wait=seconds(wait), preemptions=int(preemptions))
        elif references and line.split() and line.split()[0] in rows:
            cells = FEWER.findall(line[len(line.split()[0]):] + " ")
            fewer[line.split()[0]] = dict(zip(references, cells))
    return rows, fewer


def sign(text):
    return text.replace("-", "−")


def main():
    for heading, names in [
        ("scenario", SCENARIOS),
        ("ablation", sorted(path.stem for path in RESULTS.glob("*.txt") if path.stem not in SCENARIOS and "vllm" not in path.stem)),
    ]:
        print(f"| {heading} | policy | default | best-fixed | best-static | attained | fewer than default | than best-fixed "
              "| than best-static | TTFT p99, best-fixed → policy | longest wait, × best-fixed |")
        print("|---" * 11 + "|")
        for name in names:
            path = RESULTS / f"{name}.txt"
            if not path.exists():
                continue
            rows, fewer = read(path)
            static = next((row for row in rows if row.startswith("best-static")), None)
            for policy in (row for row in rows if row.startswith(("checkpoint:", "table:"))):
                row, fixed = rows[policy], rows["best-fixed"]
                less = fewer.get(policy, {})
                title = policy.split(":", 1)[1].removesuffix("/policy").split("/")[-1]
                cells = [
                    name, title, *(f"{rows[key]['attained']} %" if key in rows else "" for key in ("default", "best-fixed", static)),
                    f"**{row['attained']} %**", *(sign(less.get(key, "")) for key in ("default", "best-fixed", static)),
                    f"{fixed['ttft']:.1f} s → {row['ttft']:.1f} s", f"{row['wait'] / fixed['wait']:.1f}",
                ]
                print("| " + " | ".join(cells) + " |")
        print()


main()
