#!/bin/sh
# Judges shipped tables, behind their guards, in worlds they were not trained on; prints the matrix and its worst row.
#   experiments/off-road.sh [TABLE …]     without names: every table; see off-road.cells
# Exit code 1 if a table attains more than a point less than the constant watermark it could be replaced by, or makes
# somebody wait more than three times as long. What was run is kept in runs/off-road and not run again.
# OFF_ROAD_CELLS=home,light takes these worlds alone. OFF_ROAD_RAY=ADDRESS has the runs served by the workers of a Ray cluster (kvtide[ray]): the same
# numbers, sooner.
set -eu
cd "$(dirname "$0")/.."
exec "${PYTHON:-python3}" experiments/off_road.py "$@"
