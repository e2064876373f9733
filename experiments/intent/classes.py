"""Gives requests classes, and writes kvtide's own form to stdout: classes.py SESSIONS [ONCE].

Of one file the sessions are of three classes in turn. With a second, the sessions have the node's own targets, and the requests of
the second, which are among them by arrival, are of class batch.
"""
import json
import sys

# None: the node's own targets.
CLASSES = ("document", "batch", None)


def read(file):
    return [json.loads(line) for line in open(file)]


def classed(request, name):
    return request if name is None else {**request, "slo_class": name}


sessions, *once = map(read, sys.argv[1:])
if once:
    requests = sessions + [classed(request, "batch") for request in once[0]]
    requests.sort(key=lambda request: request["arrival_us"])
else:
    requests = [classed(one, CLASSES[int(one["session"].lstrip("s")) % len(CLASSES)]) for one in sessions]
for request in requests:
    print(json.dumps(request, separators=(",", ":")))
