"""Writes the tables of README.md beside it from results/: experiments/clock/run.sh table

What stands between `<!-- NAME -->` and `<!-- / -->` is replaced by what the function of that name says.
"""
import json
import pathlib

HERE = pathlib.Path(__file__).parent
# Targets of throughput, medians and tails: the profile as it stands, and with the host's constants fitted.
ZERO_SHOT, HOST = (0.05, 0.08, 0.12), (0.02, 0.04, 0.05)
# Of the card that no database has: median error of the mean E2E, share of loads whose better budget is named, excess of the choice.
OTHER_HALF, NAMED, EXCESS = 0.08, 0.9, 0.03


def read(name, kind):
    lines = (HERE / "results" / f"{name}.jsonl").read_text().splitlines()
    found = [line["data"] for line in map(json.loads, lines) if line["type"] == kind]
    assert len(found) == 1, f"{name}: {len(found)} lines of {kind}"
    return found[0]


def percent(share, signed=True):
    return f"{share * 100:{'+' if signed else ''}.1f} %"


def rows(header, lines):
    cells = lambda line: "| " + " | ".join(line) + " |"  # noqa: E731
    return "\n".join([cells(header), cells(["---"] * len(header)), *map(cells, lines)])


def verdict(checks):
    """What is met of `(name, error, target)`, and by how much the rest is missed."""
    missed = [f"{name} by {percent(abs(error) - target, signed=False)}" for name, error, target in checks if abs(error) > target]
    return "met" if not missed else "missed: " + ", ".join(missed)


def recorded():
    """Runs that a server recorded."""
    lines = []
    for name, clock, fit, targets in [
        ("rtx-pro-6000-datasheet-none", "RTX PRO 6000, data sheet", "nothing", None),
        ("rtx-pro-6000-none", "RTX PRO 6000, measured kernels", "nothing", ZERO_SHOT),
        ("rtx-pro-6000-host", "the same", "host, first 30 %", HOST),
        ("rtx-pro-6000-all", "the same", "all, first 30 %", None),
        ("rtx-4090-datasheet-none", "RTX 4090, data sheet", "nothing", None),
        ("rtx-4090-estimated-none", "RTX 4090, kernels of the L40S", "nothing", None),
        ("rtx-4090-estimated-host", "the same", "host, first 30 %", HOST),
        ("rtx-4090-estimated-all", "the same", "all, first 30 %", None),
        ("rtx-4090-datasheet-all", "RTX 4090, data sheet", "all, first 30 %", None),
    ]:
        errors = read(name, "calibration")["held_out"]
        values = [("throughput", errors["output_tok_s"])]
        for latency in ("ttft_ms", "tpot_ms", "e2e_ms"):
            values += [(f"{latency[:-3].upper()} {p}", errors[latency][p]) for p in ("p50", "p99")]
        cells = [percent(pair["error"]) for _, pair in values]
        said = "no target"
        if targets:
            of = lambda what: targets[0] if what == "throughput" else targets[1 if what.endswith("p50") else 2]  # noqa: E731
            said = verdict([(what, pair["error"], of(what)) for what, pair in values])
        lines.append([clock, fit, *cells, said])
    head = ["clock", "fitted", "throughput", "TTFT p50", "TTFT p99", "TPOT p50", "TPOT p99", "E2E p50", "E2E p99", "target"]
    return rows(head, lines)


def naming(one):
    if one is None:
        return "–"
    return f"{one['named']} of {one['cells']}, at worst {percent(one['worst_excess'])}"


METRICS = ["e2e_mean", "e2e_p95", "ttft_mean", "ttft_p95", "tpot_mean", "tpot_p95", "makespan"]
HEAD = ["clock", "fitted to", "judged on", "E2E mean", "E2E p95", "TTFT mean", "TTFT p95", "TPOT mean", "TPOT p95", "makespan",
        "better of two", "best of all"]
LOADS = {"all": "every load", "half": "loads 1, 3, 5", "other-half": "loads 2, 4, 6"}


def part_row(name, clock, model, which="judged"):
    """A row of a model's part, and the part."""
    report = read(name, "clock_report")
    part = next(one for one in report["models"] if model in one["model"])[which]
    if report["scope"] == "none":
        fitted, on = "nothing", "every load"
    else:
        fitted = f"{report['scope']}, {LOADS[report['fit_loads']]}"
        on = LOADS[report["fit_loads"]] if which == "fitted" else "the others"
    errors = [percent(part[metric]["median"], signed=False) for metric in METRICS]
    return [clock, fitted, f"{on} ({part['runs']} runs)", *errors, naming(part["better"]), naming(part["best"])], part


def summary_checks(part, targets):
    """Means are held to the target of medians, 95th percentiles to that of 99th, the makespan to that of throughput."""
    of = lambda metric: targets[0] if metric == "makespan" else targets[1 if metric.endswith("mean") else 2]  # noqa: E731
    return [(metric.replace("_", " "), part[metric]["median"], of(metric)) for metric in METRICS]


def a100():
    table = []
    for name, clock, which, targets in [
        ("a100-datasheet-none", "data sheet", "judged", None),
        ("a100-none", "measured kernels", "judged", ZERO_SHOT),
        ("a100-host", "the same", "fitted", HOST),
        ("a100-host-half", "the same", "judged", HOST),
        ("a100-host-other-half", "the same", "judged", HOST),
    ]:
        row, part = part_row(name, clock, "3B", which)
        table.append(row + [verdict(summary_checks(part, targets)) if targets else "no target"])
    return rows(HEAD + ["target"], table)


def rtx_5090():
    table, said = [], []
    for model in ("0.5B", "3B"):
        for name, clock in [
            ("rtx-5090-datasheet-none", "data sheet"),
            ("rtx-5090-none", "estimated kernels"),
            ("rtx-5090-host-half", "the same"),
            ("rtx-5090-host-other-half", "the same"),
            ("rtx-5090-all-half", "the same, one for both models"),
            ("rtx-5090-all-other-half", "the same, one for both models"),
            (f"rtx-5090-all-half-{model}", "the same, of this model"),
            (f"rtx-5090-all-other-half-{model}", "the same, of this model"),
        ]:
            row, part = part_row(name, f"{clock}, {model}", model)
            table.append(row)
            if name.endswith(model):
                checks = [("median error of the mean E2E", part["e2e_mean"]["median"], OTHER_HALF)]
                checks.append(("the choice's excess over the best", part["best"]["worst_excess"], EXCESS))
                share = part["better"]["named"] / part["better"]["cells"]
                named = f"the better of two named in {share * 100:.0f} % of {part['better']['cells']} loads"
                named += ", met" if share >= NAMED else f", missed by {percent(NAMED - share, signed=False)}"
                said.append(f"- {model}, {row[1]}: {'; '.join(f'{what} {percent(value, signed=False)}' for what, value, _ in checks)} "
                            f"({verdict(checks)}); {named}")
    for what, suffix in (("A clock for each model", "-{model}"), ("One clock for both", "")):
        halves = [(half, model) for half in ("half", "other-half") for model in ("0.5B", "3B")]
        both = [part_row(f"rtx-5090-all-{half}" + suffix.format(model=model), "", model)[1] for half, model in halves]
        cells, named = sum(part["better"]["cells"] for part in both), sum(part["better"]["named"] for part in both)
        met = "met" if named >= NAMED * cells else "missed"
        said.append(f"- {what}, all four fits: the better of 2,048 and 16,384 named in {named} of {cells} loads ({met})")
    return rows(HEAD, table) + "\n\nThe targets, of the clock fitted to half of the loads:\n\n" + "\n".join(said)


def cells_of(names, model):
    """Of each load the cell of the clock that was not fitted to it."""
    found = []
    for name in names:
        report = read(name, "clock_report")
        of_model = next(one for one in report["models"] if model in one["model"])
        found += [cell for cell in of_model["cells"] if not cell["is_fitted"]]
    return sorted(found, key=lambda cell: cell["peak_rps"])


def loads():
    text = []
    for title, model, zero, fitted in [
        ("A100, Qwen2.5-3B; host constants fitted to the other load", "3B", "a100-none", ["a100-host-half", "a100-host-other-half"]),
        ("RTX 5090, Qwen2.5-0.5B; all constants fitted to the other half of the loads", "0.5B", "rtx-5090-none",
         ["rtx-5090-all-half-0.5B", "rtx-5090-all-other-half-0.5B"]),
        ("RTX 5090, Qwen2.5-3B; the same", "3B", "rtx-5090-none", ["rtx-5090-all-half-3B", "rtx-5090-all-other-half-3B"]),
    ]:
        lines = []
        for before, cell in zip(cells_of([zero], model), cells_of(fitted, model), strict=True):
            best = cell["best"]
            for first, choice in zip(before["choices"], cell["choices"], strict=True):
                budget = "ppas" if choice["policy"] == "ppas" else f"{choice['max_num_batched_tokens']:,}"
                marks = ""
                if choice["policy"] == "fixed":
                    marks = "".join(mark for mark, key in ((" ●", "measured"), (" ○", "simulated")) if best[key] == choice["max_num_batched_tokens"])
                error = lambda of, key: percent(of[key]["error"])  # noqa: E731
                lines.append([
                    f"{cell['peak_rps']}", budget + marks, f"{choice['e2e_mean']['measured']:.2f} s", error(first, "e2e_mean"),
                    error(choice, "e2e_mean"), percent(choice["e2e_mean_median"]["error"]),
                    *(error(choice, key) for key in ("e2e_p95", "ttft_mean", "ttft_p95", "tpot_mean", "tpot_p95")),
                ])
        head = ["requests/s", "budget", "E2E mean", "as it stands", "fitted", "median of seeds", "E2E p95", "TTFT mean", "TTFT p95", "TPOT mean",
                "TPOT p95"]
        text.append(f"**{title}**\n\n{rows(head, lines)}")
    return "\n\n".join(text)


def adaptive():
    lines = []
    for card, model, zero, fitted in [
        ("A100", "3B", "a100-none", ["a100-host-half", "a100-host-other-half"]),
        ("RTX 5090", "0.5B", "rtx-5090-none", ["rtx-5090-all-half-0.5B", "rtx-5090-all-other-half-0.5B"]),
        ("RTX 5090", "3B", "rtx-5090-none", ["rtx-5090-all-half-3B", "rtx-5090-all-other-half-3B"]),
    ]:
        for before, cell in zip(cells_of([zero], model), cells_of(fitted, model), strict=True):
            gain, first = cell["adaptive"], before["adaptive"]
            lines.append([f"{card}, Qwen2.5-{model}", f"{cell['peak_rps']}", percent(gain["measured"]), percent(first["simulated"]),
                          percent(gain["simulated"])])
    return rows(["card and model", "requests/s", "measured", "as it stands", "fitted to other loads"], lines)


def constants():
    lines = []
    for name in ["rtx-pro-6000-host", "rtx-4090-estimated-host", "a100-host", "rtx-5090-host-half", "rtx-5090-host-other-half",
                 "rtx-5090-all-half", "rtx-5090-all-other-half", "rtx-5090-all-half-0.5B", "rtx-5090-all-other-half-0.5B",
                 "rtx-5090-all-half-3B", "rtx-5090-all-other-half-3B"]:
        kind = "calibration" if "4090" in name or "6000" in name else "clock_report"
        found = {one["name"]: one for one in read(name, kind)["constants"]}

        def show(key):
            if key not in found:
                return "–"
            value, unit = found[key]["value"], found[key]["unit"]
            if unit != "s":
                return f"{value:.2f}"
            return f"{value * 1e3:.2f} ms" if value >= 1e-3 else f"{value * 1e6:.0f} µs"

        lines.append([f"`{name}`", *map(show, ["products", "prefill", "decode", "exposed", "exposed_sequence", "chunk_overhead", "client"])])
    head = ["fit", "products ×", "attention of prompts ×", "attention of decodes ×", "exposed, a step", "a sequence", "a step with prompts",
            "client ×"]
    return rows(head, lines)


def main():
    path = HERE / "README.md"
    text = path.read_text()
    for table in (recorded, a100, rtx_5090, loads, adaptive, constants):
        before, rest = text.split(f"<!-- {table.__name__} -->\n")
        _, after = rest.split("<!-- / -->", 1)
        text = f"{before}<!-- {table.__name__} -->\n{table()}\n<!-- / -->{after}"
    path.write_text(text)


main()
