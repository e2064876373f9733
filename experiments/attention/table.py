"""What `run.sh` found, as the tables of README.md: a row a source of attention."""

import json
import sys
from pathlib import Path


def interval(of: dict, scale: float, digits: int, signed: bool = False) -> str:
    def shown(value: float) -> str:
        return f"{value * scale:{'+' if signed else ''}.{digits}f}"

    bounds = "" if of["low"] is None else f" [{shown(of['low'])}, {shown(of['high'])}]"
    return shown(of["mean"]) + bounds


def rows(path: Path, kind: str) -> list[dict]:
    lines = (json.loads(line) for line in path.read_text(encoding="utf-8").splitlines())
    return [line["data"] for line in lines if line["type"] == kind]


def name(path: Path) -> str:
    return path.name.removesuffix(".results.jsonl")


def retained(paths: list[Path]) -> None:
    """Everybody with what Token-PD's price aims at, at the larger number of streams."""
    policies = ["fifo", "lru", "h2o", "token-pd"]
    print("| attention | " + " | ".join(policies) + " | ahead of the best other, points |\n|---|" + "---|" * 5)
    for path in paths:
        means = [row for row in rows(path, "token_pd_mean") if row["part"] == "streams"]
        streams = max(row["streams"] for row in means)
        means = [row for row in means if row["streams"] == streams]
        least = min(row["capacity_blocks"] for row in means)
        little = {row["policy"]: row for row in means if row["capacity_blocks"] == least}
        finding = next(row for row in rows(path, "token_pd_finding") if row["streams"] == streams)
        cells = [interval(little[policy]["retained"], 100, 1) for policy in policies]
        print(f"| {name(path)} | " + " | ".join(cells) + f" | {interval(finding['retained_ahead_of_best_other'], 100, 1, True)} |")


def claims(paths: list[Path]) -> None:
    print("\n| attention | streams | less peak memory, % | times FIFO's requests/s | points more than FIFO with all | confirmed |\n|---|---|---|---|---|---|")
    for path in paths:
        for row in rows(path, "token_pd_finding"):
            print(
                f"| {name(path)} | {row['streams']} | {interval(row['memory_saved'], 100, 1)} | {interval(row['throughput'], 1, 2)} | "
                f"{interval(row['retained_ahead_of_fifo'], 100, 1, True)} | memory {row['memory_confirmed']} of {row['seeds']}, "
                f"throughput {row['throughput_confirmed']} of {row['seeds']} |"
            )


def closely(paths: list[Path]) -> None:
    print("\n| attention | learned | constant, points less | explains, % | λ = 0.1 | 0.2 | 0.3 | 0.4 | 0.5, points against λ = 0 |\n|---|" + "---|" * 8)
    for path in paths:
        means = rows(path, "token_pd_mean")
        predictors = [row for row in means if row["part"] == "predictor"]
        least = min(row["capacity_blocks"] for row in predictors)
        learned, constant = (
            next(row for row in predictors if row["capacity_blocks"] == least and row["predictor"] == kind)
            for kind in ("learned", "constant")
        )
        risks = [row for row in means if row["part"] == "risk" and row["risk_aversion"] > 0]
        explained = [row["explained"] for row in rows(path, "token_pd_training")]
        print(
            f"| {name(path)} | {interval(learned['retained'], 100, 1)} | {interval(constant['retained_ahead'], 100, 1, True)} | "
            f"{100 * sum(explained) / len(explained):.0f} | " + " | ".join(interval(row["retained_ahead"], 100, 1, True) for row in risks) + " |"
        )


def main() -> None:
    paths = [Path(path) for path in sys.argv[1:]]
    for table in (retained, claims, closely):
        table(paths)


if __name__ == "__main__":
    main()
