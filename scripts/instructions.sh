#!/usr/bin/env bash
# Instructions of a scheduler step, a decision and the prefix cache's operations, counted by callgrind: the same on every
# machine for one compiler, so that "no slower" can be said of a change. Needs valgrind.
#
#   scripts/instructions.sh [FILE]   counts what is built from this tree; with FILE, a table of before, also the change
set -euo pipefail
cd "$(dirname "$0")/.."
before=${1:-/dev/null}
cargo build --quiet --release --locked -p kvtide-envs --example count
program=${CARGO_TARGET_DIR:-target}/release/examples/count
out=$(mktemp)
trap 'rm -f "$out"' EXIT
for name in $("$program"); do
  said=$(valgrind --quiet --tool=callgrind --callgrind-out-file="$out" --toggle-collect='count::counted*' \
    "$program" "$name")
  read -r units unit <<<"$said"
  awk -v name="$name" -v units="$units" -v unit="$unit" -v before="$before" '
    BEGIN { while ((getline line < before) > 0) { split(line, cell); if (cell[1] == name) was = cell[2] } }
    /^(summary|totals):/ { count = $2 }
    END {
      printf "%-16s %10.1f instructions a %s", name, count / units, unit
      if (was > 0) printf "  was %.1f  %+.1f %%", was, 100 * (count / units / was - 1)
      print ""
    }' "$out"
done
