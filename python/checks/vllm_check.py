"""Every shipped table on vLLM's own scheduler, beside what kvtide predicts: `vllm_check.py --kvtide PATH [--quick]`.

`scenarios.toml` says what is served and which tables are meant for it. For each, default and a fixed watermark, one table in
shadow mode, and the tables: served by vLLM's scheduler (`vllm_replay.py`) and by `kvtide simulate`, on the same traffic. It
fails where

- the default, a fixed watermark or shadow mode is not what was predicted, step for step;
- a table attains half a point more or less than was predicted;
- a table that is meant for the traffic is refused, or, up to the last request's arrival, falls back in more than one decision
  of twenty or is falling back then (afterwards the node runs empty, as none does for long);
- kvtide fails inside, or does not start;
- a shipped table is in no scenario, unless it says that it is for another host.

Tables are the same code on either side and agree to the step as well, unless what they see differs: vLLM keeps several cached
blocks of the same tokens where the simulator keeps one.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

from traffic import Missing, traffic

from kvtide import Table

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).parent
FIXED = "fixed:0.05"
HOST = "vllm-0.33"
# Of decisions, and of requests.
MOST_FALLBACKS, MOST_DIFFERENCE = 0.05, 0.005
EXACT = ("requests", "slo_attainment", "preemptions", "scheduler_steps", "makespan_s")
QUICK = ("memory-bound", "chat")


def tables_of(scenario: dict) -> list[Path]:
    return [ROOT / "checkpoints" / name / "policy.kvt" for name in scenario["tables"]]


def arguments_of(scenario: dict, trace: Path) -> list[str]:
    """What `kvtide simulate` and `vllm_replay.py` are both told."""
    arguments = ["--trace", str(trace), "--env", scenario["env"], "--slo", scenario["slo"]]
    if "clients" in scenario:
        arguments += ["--clients", str(scenario["clients"])]
    return arguments + [part for setting in scenario.get("set", ()) for part in ("--set", setting)]


class Failed(Exception):
    """A command that did not do what it was asked."""


def rows_of(command: list[str], policies: list[str], environ: dict | None = None) -> dict[str, dict]:
    """Runs a command that prints a JSON object a policy."""
    command = command + [part for policy in policies for part in ("--policy", policy)]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environ)
    if done.returncode != 0:
        raise Failed(done.stderr[-2000:].strip())
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    found = [row.get("data", row) for row in rows if row.get("type", "run") == "run"]
    return dict(zip(policies, found, strict=True))


def guard_of(row: dict) -> dict | None:
    """What the guard did: vLLM's side reports it as kvtide's, the simulator's as the guard's."""
    return row.get("kvtide") or row.get("guard")


def fallen_back(guard: dict) -> float:
    return sum(guard.get("fallbacks", {}).values()) / max(guard["decisions"], 1)


def faults(policy: str, real: dict, predicted: dict | None) -> list[str]:
    """Why this row fails the check."""
    kind = policy.partition(":")[0]
    found = []
    if kind != "table" and predicted is not None:
        found += [f"{field} {real[field]}, predicted {predicted[field]}" for field in EXACT if real[field] != predicted[field]]
    elif predicted is not None and abs(real["slo_attainment"] - predicted["slo_attainment"]) > MOST_DIFFERENCE:
        found.append(f"attains {real['slo_attainment']:.4f}, predicted {predicted['slo_attainment']:.4f}")
    guard = real.get("kvtide")
    if guard is None:
        return found + (["kvtide is not at work"] if kind in ("table", "shadow") else [])
    if guard["errors"]:
        found.append(f"failures inside: {guard['errors']}")
    if set(guard["reloads"]) != {"ok"}:
        found.append(f"refused: {', '.join(guard['reloads'])}")
    elif kind == "table":
        served = real["kvtide_while_served"]
        if served["last_fallback"] is not None:
            found.append(f"ends on a fallback: {served['last_fallback']} {outside(served)}")
        if fallen_back(served) > MOST_FALLBACKS:
            found.append(f"falls back: {served['fallbacks']} of {served['decisions']} decisions {outside(served)}")
    return found


def outside(guard: dict) -> str:
    most = sorted(guard["out_of_range"].items(), key=lambda item: -item[1])[:3]
    return f"({', '.join(f'{name} {count}' for name, count in most)})" if most else ""


def numbers(row: dict | None) -> str:
    if row is None:
        return f"{'–':>9}{'–':>9}{'–':>8}{'–':>10}{'–':>8}"
    guard = guard_of(row)
    back = "" if guard is None else f"{100 * fallen_back(guard):.1f} %"
    return (f"{100 * row['slo_attainment']:>7.2f} %{row['preemptions']:>9}{row['scheduler_steps']:>8}"
            f"{row['makespan_s']:>10.3f}{back:>8}")  # fmt: skip


def check(name: str, scenario: dict, kvtide: str, folder: Path, quick: bool) -> int:
    """Serves one scenario on both sides and prints it; how many rows fail."""
    trace = traffic(scenario, kvtide, ROOT, folder / f"{name}.jsonl", quick)
    arguments, tables = arguments_of(scenario, trace), tables_of(scenario)
    policies = ["default", FIXED, f"shadow:{tables[0]}", *(f"table:{table}" for table in tables)]
    replay = [sys.executable, "-B", str(HERE / "vllm_replay.py"), *arguments]
    simulate = [kvtide, "simulate", "--json", "--engine", "v1", *arguments]
    print(f"\n{name}: {scenario['about']}; {scenario['env']}, {scenario['slo']}")
    print(f"  {'':24}{'vLLM: attained':>15}{'preempt.':>9}{'steps':>8}{'seconds':>10}{'back':>8}"
          f"   kvtide predicts")  # fmt: skip
    wrong = 0
    try:
        rows = rows_of(replay, policies, os.environ | {"VLLM_LOGGING_LEVEL": "ERROR"})
    except Failed as error:
        raise SystemExit(f"{' '.join(replay)}: {error}") from None
    for policy, real in rows.items():
        kind, _, value = policy.partition(":")
        predicted, found = None, []
        try:
            # In shadow mode vLLM does what it does by itself.
            (predicted,) = rows_of(simulate, ["default" if kind == "shadow" else policy]).values()
        except Failed as error:
            found.append(f"no prediction: {error}")
        found += faults(policy, real, predicted)
        shown = f"{kind}:{Path(value).parent.name}" if kind in ("table", "shadow") else policy
        agrees = predicted is not None and all(real[field] == predicted[field] for field in EXACT)
        print(f"  {shown:30}{numbers(real)}   {'the same' if agrees else numbers(predicted)}", flush=True)
        for fault in found:
            print(f"    FAILS: {fault}")
        wrong += bool(found)
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kvtide", required=True, help="the built program")
    parser.add_argument("--quick", action="store_true", help=f"only {' and '.join(QUICK)}, and less of them")
    parser.add_argument("--only", action="append", help="only this scenario")
    parser.add_argument("--table", action="append", type=Path, help="a folder with a policy.kvt of yours, in place of the shipped tables")
    options = parser.parse_args()
    scenarios = tomllib.loads((HERE / "scenarios.toml").read_text())
    hosts = {path.parent.name: Table.load(path).metadata.get("host", HOST) for path in ROOT.glob("checkpoints/*/policy.kvt")}
    shipped = {name for name, host in hosts.items() if host == HOST}
    for name in sorted(hosts.keys() - shipped):
        print(f"checkpoints/{name} is for {hosts[name]} and not served here")
    named = {table for scenario in scenarios.values() for table in scenario["tables"]}
    wrong, skipped = 0, 0
    for table in sorted(shipped - named):
        print(f"FAILS: checkpoints/{table} is in no scenario of scenarios.toml")
        wrong += 1
    chosen = options.only or (QUICK if options.quick else scenarios)
    with tempfile.TemporaryDirectory(prefix="kvtide-vllm-") as folder:
        for name in chosen:
            tables = [table for table in scenarios[name]["tables"] if table in shipped]
            scenario = scenarios[name] | {"tables": [table.resolve() for table in options.table or ()] or tables}
            if not scenario["tables"]:
                continue
            try:
                wrong += check(name, scenario, options.kvtide, Path(folder), options.quick)
            except Missing as error:
                print(f"\n{name}: skipped, {error}")
                skipped += 1
    print(f"\n{len(chosen) - skipped} scenarios, {skipped} skipped, {wrong} rows that fail")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
