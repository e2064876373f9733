"""Writes a stretch of traffic later: shift.py FILE SECONDS, kvtide's own form to stdout."""
import json
import sys

for line in open(sys.argv[1]):
    request = json.loads(line)
    request["arrival_us"] += int(sys.argv[2]) * 1_000_000
    print(json.dumps(request, separators=(",", ":")))
