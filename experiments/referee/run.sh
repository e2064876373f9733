#!/bin/sh
# The referee: four learners of one algorithm on two problems, side by side; see README.md.
#   experiments/referee/run.sh            all of it into results.jsonl; what is in there is not done again
#   experiments/referee/run.sh table      results.jsonl as Markdown, and as results.svg
#   experiments/referee/run.sh ship       a policy of sb3-contrib's as a table: imported, exported, judged, on vLLM's scheduler (ship.sh)
# Makes an environment of its own (REFEREE_DIR, target/referee, 4.7 GB), kvtide-train and the wheel; WHEEL names one that is built.
set -eu
cd "$(dirname "$0")/../.."
folder=${REFEREE_DIR:-target/referee}
venv=$folder/venv
if ! cmp -s experiments/referee/requirements.txt "$folder/requirements"; then
    mkdir -p "$folder"
    "${PYTHON:-python3}" -m venv --clear "$venv"
    "$venv/bin/pip" install --quiet --disable-pip-version-check -r experiments/referee/requirements.txt maturin==1.16.0
    cp experiments/referee/requirements.txt "$folder/requirements"
fi
# One torch thread everywhere; ours takes what it takes.
run() {
    PYTHONPATH=$folder/site OMP_NUM_THREADS=1 "$venv/bin/python" -B "$@"
}
case ${1:-} in
    table)
        run experiments/referee/table.py
        run experiments/referee/picture.py
        exit
        ;;
    ship) exec env VENV="$venv" SITE="$folder/site" experiments/referee/ship.sh ;;
esac
cargo build --release --locked -p kvtide-torch --bin kvtide-train --example cartpole
if [ -z "${WHEEL:-}" ]; then
    rm -rf "$folder/wheels"
    "$venv/bin/maturin" build --quiet --release --manifest-path python/Cargo.toml --out "$folder/wheels"
    WHEEL=$(ls "$folder"/wheels/*.whl)
fi
rm -rf "$folder/site"
"$venv/bin/pip" install --quiet --disable-pip-version-check --no-deps --target "$folder/site" "$WHEEL"
run experiments/referee/referee.py "$@"
