"""Gives the sessions of a trace classes in turn: classes.py FILE, the trace in kvtide's own form with them to stdout."""
import json
import sys

# None: the node's own targets.
CLASSES = ("document", "batch", None)

for line in open(sys.argv[1]):
    request = json.loads(line)
    name = CLASSES[int(request["session"].lstrip("s")) % len(CLASSES)]
    if name is not None:
        request["slo_class"] = name
    print(json.dumps(request, separators=(",", ":")))
