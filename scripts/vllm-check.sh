#!/bin/sh
# vLLM's own V1 scheduler over a trace, with and without kvtide, beside what `kvtide simulate` says of the same trace.
#
#   scripts/vllm-check.sh [TRACE.jsonl [TABLE.kvt]]
#
# Needs no GPU. The first call makes a virtual environment of about 6 GB (vLLM's wheel and torch, which brings CUDA's
# libraries whether they are used or not) in target/vllm-check; SIMULATOR names a built kvtide.
# The trace is kvtide JSON Lines without shared prefixes; by default 600 s of generated chat at 2.2 requests/s.
set -eu
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
folder=${VLLM_CHECK_DIR:-target/vllm-check}
simulator=${SIMULATOR:-target/release/kvtide}
trace=${1:-$folder/chat.jsonl}
table=${2:-checkpoints/chat-24g/policy.kvt}
blocks=2588
mkdir -p "$folder"

if [ ! -x "$folder/venv/bin/python" ] || [ ! -e "$folder/venv/done" ]; then
    "$python" -m venv "$folder/venv"
    "$folder/venv/bin/pip" install --quiet torch==2.14.0
    "$folder/venv/bin/pip" install --quiet --no-deps vllm==0.33.0
    "$folder/venv/bin/pip" install --quiet --no-deps -r python/checks/vllm-requirements.txt
    "$folder/venv/bin/pip" install --quiet maturin==1.16.0
    touch "$folder/venv/done"
fi
rm -rf "$folder/wheels"
"$folder/venv/bin/maturin" build --quiet --release --manifest-path python/Cargo.toml --out "$folder/wheels"
"$folder/venv/bin/pip" install --quiet --no-deps --force-reinstall "$folder"/wheels/*.whl

[ -e "$trace" ] || "$simulator" trace generate chat:rate=2.2,duration=600,seed=1 "$trace"
echo "kvtide simulate:"
"$simulator" simulate --trace "$trace" --engine v1 --set num_gpu_blocks=$blocks \
    --policy default --policy fixed:0.05 --policy "table:$table" --json > "$folder/kvtide.jsonl"
"$folder/venv/bin/python" python/checks/compare.py "$folder/kvtide.jsonl"
echo "vLLM:"
"$folder/venv/bin/python" python/checks/vllm_replay.py --trace "$trace" --blocks $blocks \
    --policy default --policy fixed:0.05 --policy "table:$table" --policy "shadow:$table" > "$folder/vllm.jsonl"
"$folder/venv/bin/python" python/checks/compare.py "$folder/kvtide.jsonl" "$folder/vllm.jsonl"
