"""Decision tables for paged KV caches: load one, observe, decide.

>>> from kvtide import Guard, Observer, Table
>>> guard = Guard(Table.load("policy.kvt"), fallback_watermark=0.0)
>>> observer = Observer()
>>> observation = observer.observe(now_us=0, block_size=16, num_gpu_blocks=2588, free_gpu_blocks=40, ...)
>>> guard.decide(observation).watermark

`kvtide.vllm` and `kvtide.sglang` do this inside a serving engine.
"""

from kvtide._kvtide import (
    ACTION_SET_HASH,
    FALLBACK_REASONS,
    FEATURE_NAMES,
    RELEASE_FEATURE_NAMES,
    RELEASE_SCHEMA_HASH,
    SCHEMA_HASH,
    HEADS,
    WATERMARK_LEVELS,
    Controls,
    Guard,
    IntentOrder,
    Ledger,
    Observation,
    Observer,
    Pricing,
    Recorder,
    Retainer,
    Slo,
    Table,
    TableError,
    Visit,
    VllmView,
    WaitingQueue,
    __version__,
)

__all__ = [
    "ACTION_SET_HASH",
    "FALLBACK_REASONS",
    "FEATURE_NAMES",
    "RELEASE_FEATURE_NAMES",
    "RELEASE_SCHEMA_HASH",
    "SCHEMA_HASH",
    "HEADS",
    "WATERMARK_LEVELS",
    "Controls",
    "Guard",
    "IntentOrder",
    "Ledger",
    "Observation",
    "Observer",
    "Pricing",
    "Recorder",
    "Retainer",
    "Slo",
    "Table",
    "TableError",
    "Visit",
    "VllmView",
    "WaitingQueue",
    "__version__",
]


def __getattr__(name):
    # The simulator needs NumPy, and a node does not.
    if name == "simulate":
        from kvtide.evaluate import simulate

        return simulate
    raise AttributeError(f"module 'kvtide' has no attribute {name!r}")
