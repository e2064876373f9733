"""kvtide on a Ray cluster: `pip install 'kvtide[ray]'`.

Work that is many independent simulations is spread over the workers of a cluster; what comes out is byte for byte what one
machine comes to, in the same order, whatever finished first and whoever was lost on the way.

- ``kvtide evaluate --ray ADDRESS``, `kvtide.ray.matrix`: the evaluation matrix, and many of them (experiments/off-road.sh).
- ``kvtide train --ray ADDRESS``: the candidates of a search. `kvtide.ray.search`: those of a search of yours.
- `kvtide.ray.tune`: Ray Tune over `kvtide.evaluate`. `kvtide.ray.rllib`: PPO, and the way from its module to a checkpoint.

The tool starts `kvtide.ray.serve`, which has the tasks done; `kvtide.ray.work` is what a worker does. The wheel must be of one
build on every machine, and the tool of the same.
"""

from types import ModuleType

__all__ = ["needs_ray", "connect"]


def needs_ray() -> ModuleType:
    """Ray, or an ImportError that says how to come by it."""
    try:
        import ray
    except ImportError as error:
        raise ImportError(f"Ray cannot be imported ({error}): pip install 'kvtide[ray]'") from error
    return ray


def connect(address: str) -> ModuleType:
    """Joins the cluster at `address` (``10.0.0.1:6379``, ``auto``), or starts one of this machine's own (``local``); Ray.

    A cluster that was joined already is kept. Nothing is reported to anybody, no dashboard is started. Raises ConnectionError
    where nobody answers.
    """
    import os

    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    if address == "local":
        # Ray's name for it is of other systems, where it is the default: the loopback's address, and no other.
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
    ray = needs_ray()
    if ray.is_initialized():
        return ray
    _answers(address)
    quiet = {"log_to_driver": False, "logging_level": "ERROR"}
    # Tasks and answers are small: what Ray would take of this machine's memory is for others.
    small = {"object_store_memory": 100 << 20, "include_dashboard": False}
    ray.init(address=address, **quiet, **(small if address == "local" else {}))
    return ray


def _answers(address: str) -> None:
    """Ray looks for minutes for a cluster that is not there."""
    import socket

    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or "/" in host:
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()
    except OSError as error:
        raise ConnectionError(f"no cluster answers: {error}") from error
