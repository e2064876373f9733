"""``python3 -m kvtide.ray.serve ADDRESS``: has the tasks of ``kvtide evaluate --ray`` and ``kvtide train --ray`` done.

The tool starts it and speaks with it in lines of JSON (src/crew/ray.rs lists them). It does no work of its own. A task whose worker
is lost is done again, elsewhere if need be; one that has no result is not, because it would have none again. It ends with its
standard input.
"""

import json
import os
import queue
import signal
import sys
import threading
from collections.abc import Sequence
from types import ModuleType

__all__ = ["Foreman", "main"]

# How often a task is sent out again when whoever did it is lost.
_MOST_TRIES = 8
# Seconds that Ray has to end before it is left to itself.
_PATIENCE = 4


class Foreman:
    """Sends tasks to the workers of a cluster and puts what comes of each into `done`: ``(number, is_done, text, took)``."""

    def __init__(self, ray: ModuleType, *, most_tries: int = _MOST_TRIES) -> None:
        from kvtide.ray import work

        self.ray = ray
        self.done = queue.SimpleQueue()
        # Retries are counted and told of here, so Ray makes none of its own.
        self._do = ray.remote(max_retries=0, num_cpus=1)(work.do)
        self._most_tries = most_tries
        self._told = {}
        self._pending = {}
        self._lock = threading.Lock()
        self.tasks, self.again, self.sent, self.received = 0, 0, 0, 0

    @property
    def workers(self) -> int:
        """How many tasks are done at once."""
        return max(1, int(self.ray.cluster_resources().get("CPU", 1)))

    def tell(self, setting: str, text: str, paths: Sequence[str]) -> None:
        """Puts what tasks of `setting` have in common into the object store, once: its text, and its files one by one."""
        files = []
        for path in paths:
            with open(path, "rb") as file:
                data = file.read()
            files.append(self.ray.put(data))
            self.sent += len(data)
        self.sent += len(text)
        self._told[setting] = [self.ray.put({"text": text, "paths": [os.path.abspath(path) for path in paths], "files": files})]

    def begin(self, number: int, setting: str, task: str) -> None:
        """Has a task done."""
        self.tasks += 1
        self._send(number, setting, task, 1)

    def _send(self, number, setting, task, tries):
        self.sent += len(task)
        reference = self._do.remote(setting, self._told[setting], task)
        with self._lock:
            self._pending[number] = reference
        reference.future().add_done_callback(lambda future: self._heard(future, number, setting, task, tries))

    def _heard(self, future, number, setting, task, tries):
        with self._lock:
            self._pending.pop(number, None)
        try:
            is_done, text, took = future.result()
        except BaseException as error:
            return self._lost(error, number, setting, task, tries)
        self.received += len(text)
        self.done.put((number, is_done, text, took))

    def _lost(self, error, number, setting, task, tries):
        """Whoever did a task is gone: it is done again. What a worker raised it would raise again."""
        exceptions = self.ray.exceptions
        is_cancelled = isinstance(error, exceptions.TaskCancelledError)
        is_raised = isinstance(error, exceptions.RayTaskError) or not isinstance(error, exceptions.RayError)
        reason = " ".join(str(error).split())
        if "No module named 'kvtide" in reason:
            reason = f"a worker has no kvtide wheel with kvtide.ray: pip install 'kvtide[ray]' on every machine ({reason[-200:]})"
        if is_cancelled or is_raised or tries >= self._most_tries:
            return self.done.put((number, False, f"after {tries} tries: {reason}" if tries > 1 else reason, {}))
        self.again += 1
        say(f"a worker is lost ({type(error).__name__}): task {number} is done again")
        # Not in a thread of Ray's.
        threading.Thread(target=self._send, args=(number, setting, task, tries + 1), daemon=True).start()

    def end(self) -> None:
        """Gives up what is not done."""
        with self._lock:
            pending, self._pending = list(self._pending.values()), {}
        for reference in pending:
            self.ray.cancel(reference, force=True)


def say(text: str) -> None:
    """A line for people, which the tool passes on."""
    print(f"kvtide.ray: {text}", file=sys.stderr, flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    arguments = sys.argv[1:] if arguments is None else arguments
    # What libraries print must not come between the lines.
    lines = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def answer(**line):
        try:
            print(json.dumps(line), file=lines, flush=True)
        except BrokenPipeError:
            os._exit(0)

    if len(arguments) != 1:
        answer(refused=f"python3 -m kvtide.ray.serve ADDRESS, not {arguments}")
        return 2
    asked = json.loads(sys.stdin.readline() or "{}").get("hello")
    try:
        foreman = _foreman(arguments[0], asked)
    except Exception as error:
        answer(refused=" ".join(str(error).split()))
        return 2
    answer(ready=foreman.workers)
    threading.Thread(target=_answers, args=(foreman, lines), daemon=True).start()
    for line in sys.stdin:
        said = json.loads(line)
        try:
            if "number" in said:
                foreman.begin(said["number"], said["setting"], said["task"])
            else:
                foreman.tell(said["setting"], said["text"], said["files"])
        except Exception as error:
            answer(refused=" ".join(str(error).split()))
    say(
        f"{foreman.tasks} tasks on {foreman.workers} workers, {foreman.again} of them done again; "
        f"{foreman.sent} bytes sent, {foreman.received} received"
    )
    threading.Timer(_PATIENCE, os._exit, [0]).start()
    foreman.end()
    foreman.ray.shutdown()
    os._exit(0)


def _foreman(address, asked):
    try:
        from kvtide._sim import BUILD
    except ImportError as error:
        raise ImportError(f"this wheel has no simulator ({error})") from error
    if asked != BUILD:
        raise RuntimeError(f"the wheel is of build {BUILD}, the tool of {asked}: both must be of one; build or install them again")
    from kvtide.ray import connect

    return Foreman(connect(address))


def _answers(foreman, lines):
    while True:
        number, is_done, text, _ = foreman.done.get()
        # The answer is JSON already.
        said = f'{{"number":{number},"done":{text}}}' if is_done else json.dumps({"number": number, "failed": text})
        try:
            print(said, file=lines, flush=True)
        except BrokenPipeError:
            os._exit(0)


if __name__ == "__main__":
    sys.exit(main())
