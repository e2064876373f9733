"""A cluster of two raylets on this machine, one CPU each, on the loopback alone; and its workers, to be killed."""

import contextlib
import os
import signal
import time
from pathlib import Path

# For Ray, which reads them when it is imported, and for what is started from here: no address but the loopback's, nothing reported.
# So this module is imported first.
SETTINGS = {
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    # Ray gives its workers the least of a busy machine otherwise.
    "RAY_worker_niceness": "0",
}
os.environ.update(SETTINGS)
SMALL = {"num_cpus": 1, "object_store_memory": 100 << 20}


@contextlib.contextmanager
def cluster(nodes=2):
    """A cluster of so many nodes, until it is left."""
    from ray.cluster_utils import Cluster

    made = Cluster(initialize_head=True, head_node_args={**SMALL, "include_dashboard": False})
    try:
        for _ in range(nodes - 1):
            made.add_node(**SMALL)
        yield made
    finally:
        made.shutdown()


def workers():
    """Worker processes of clusters that this process started: ``(pid, what it does)``, ``ray::IDLE`` or ``ray::do``."""
    parents, titles = {}, {}
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        with contextlib.suppress(OSError):
            # What stands after the name, which may hold anything.
            parents[int(folder.name)] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            titles[int(folder.name)] = (folder / "cmdline").read_bytes().split(b"\0")[0].decode(errors="replace")

    def is_ours(pid):
        while pid > 1:
            pid = parents.get(pid, 0)
            if pid == os.getpid():
                return True
        return False

    return [(pid, title) for pid, title in sorted(titles.items()) if title.startswith("ray::") and is_ours(pid)]


def kill_one_at_work(patience=120, titles=("ray::do",)):
    """Kills a worker that is doing a task called so, by its pid, which is returned; None if none came to work in `patience` seconds."""
    ends = time.monotonic() + patience
    while time.monotonic() < ends:
        for pid, title in workers():
            if title in titles:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                    return pid
        time.sleep(0.01)
    return None
