"""What a node is told: environment variables, read once when the engine starts."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from kvtide._kvtide import Pricing, Slo

MODES = ("shadow", "act")
FALLBACKS = ("engine", "table")
# What a recording's name ends in.
SUFFIXES = (".jsonl", ".jsonl.gz")


class SettingError(ValueError):
    """An environment variable that cannot be understood."""


@dataclass(frozen=True)
class Settings:
    """How a node uses its table, and what it records."""

    # Empty: none, and nothing is decided.
    table: str
    mode: str = "shadow"
    # None: what the table was trained for, else the default targets.
    slo: Slo | None = None
    # None: what the table was trained with, else 8.
    interval: int | None = None
    # None: measured.
    prefill_ns_per_token: float | None = None
    # Of a prompt, per token and token of context before it.
    attention_ns_per_token_pair: float = 0.0
    reload_s: float = 2.0
    metrics_port: int | None = None
    out_of_range_decisions: int = 8
    recovery_decisions: int = 32
    hold_decisions: int = 0
    range_tolerance: float = 0.1
    # What is done where the table cannot be trusted: what the `engine` does by itself, or the watermark that the `table`
    # knows to be best, or this one. None: what suits the engine.
    fallback: str | None = None
    fallback_watermark: float | None = None
    # Where what is served is recorded; numbered files of so many megabytes, and so many of them.
    record: str | None = None
    record_mb: int = 64
    record_files: int = 16

    @staticmethod
    def from_env(environ: Mapping[str, str] = os.environ) -> Settings | None:
        """The settings, or None without `KVTIDE_TABLE` and `KVTIDE_RECORD`: then kvtide is not there."""
        table, record = environ.get("KVTIDE_TABLE", ""), environ.get("KVTIDE_RECORD") or None
        if not table and record is None:
            return None
        if record is not None and (not record.endswith(SUFFIXES) or os.path.basename(record) in SUFFIXES):
            raise SettingError(f"KVTIDE_RECORD is a file whose name ends in .jsonl or .jsonl.gz, found {record!r}")
        mode = environ.get("KVTIDE_MODE", "shadow")
        if mode not in MODES:
            raise SettingError(f"KVTIDE_MODE is shadow or act, found {mode!r}")
        slo, fallback = environ.get("KVTIDE_SLO"), environ.get("KVTIDE_FALLBACK") or None
        is_named = fallback in (None, *FALLBACKS)
        return Settings(
            table=table,
            mode=mode,
            slo=_slo(slo) if slo else None,
            interval=_number(environ, "KVTIDE_INTERVAL", int, None, 1),
            prefill_ns_per_token=_number(environ, "KVTIDE_PREFILL_NS_PER_TOKEN", float, None, 0),
            attention_ns_per_token_pair=_number(environ, "KVTIDE_ATTENTION_NS_PER_TOKEN_PAIR", float, 0.0, 0),
            reload_s=_number(environ, "KVTIDE_RELOAD_S", float, 2.0, 0),
            metrics_port=_number(environ, "KVTIDE_METRICS_PORT", int, None, 1),
            out_of_range_decisions=_number(environ, "KVTIDE_OUT_OF_RANGE_DECISIONS", int, 8, 1),
            recovery_decisions=_number(environ, "KVTIDE_RECOVERY_DECISIONS", int, 32, 1),
            hold_decisions=_number(environ, "KVTIDE_HOLD_DECISIONS", int, 0, 0),
            range_tolerance=_number(environ, "KVTIDE_RANGE_TOLERANCE", float, 0.1, 0),
            fallback=fallback if is_named else "engine",
            fallback_watermark=None if is_named else _share("KVTIDE_FALLBACK", fallback),
            record=record,
            record_mb=_number(environ, "KVTIDE_RECORD_MB", int, 64, 1),
            record_files=_number(environ, "KVTIDE_RECORD_FILES", int, 16, 1),
        )


def targets_and_price(environ: Mapping[str, str] = os.environ) -> tuple[Slo, Pricing]:
    """What holds for a node with or without a table: the targets of requests that say none, and what computing tokens costs."""
    slo = environ.get("KVTIDE_SLO")
    return _slo(slo) if slo else Slo(), Pricing(
        _number(environ, "KVTIDE_PREFILL_NS_PER_TOKEN", float, None, 0),
        _number(environ, "KVTIDE_ATTENTION_NS_PER_TOKEN_PAIR", float, 0.0, 0),
    )


def _slo(text: str) -> Slo:
    try:
        return Slo.parse(text)
    except ValueError as error:
        raise SettingError(f"KVTIDE_SLO: {error}") from None


def _share(name: str, text: str) -> float:
    try:
        share = float(text)
    except ValueError:
        share = -1.0
    if not 0.0 <= share <= 1.0:
        raise SettingError(f"{name} is {' or '.join(FALLBACKS)} or a watermark from 0 to 1, found {text!r}")
    return share


def _number(environ, name, kind, default, least):
    text = environ.get(name)
    if not text:
        return default
    try:
        value = kind(text)
    except ValueError:
        value = None
    if value is None or not value >= least or value == float("inf"):
        raise SettingError(f"{name} is a number of at least {least}, found {text!r}")
    return value
