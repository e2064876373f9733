#!/usr/bin/env bash
# Trains a small decoder, records what it attends to, and judges Token-PD on that: README.md says what came of it.
#
#   experiments/attention/run.sh [FOLDER]     about an hour on one core; FOLDER takes weights and text, and is none of the repository's
#
# PYTHON has torch and transformers, KVTIDE is the tool.
set -euo pipefail
cd "$(dirname "$0")/../.."
folder=${1:-runs/attention}
python=${PYTHON:-python3}
kvtide=${KVTIDE:-target/release/kvtide}
record() {
    "$python" python/checks/record_attention.py --model "$folder/model" --answer-tokens 512 "$@"
}
judge() {
    "$kvtide" -q evict token-pd --seeds 1..5 --streams 128,256 --json "$@"
}

mkdir -p "$folder"
nice -n 19 "$python" experiments/attention/train.py "$folder" --minutes "${MINUTES:-15}" | tee "$folder/train.txt"
# As the files go on, and as the model goes on.
record --prompts "$folder/given.jsonl" "$folder/given.attention.jsonl"
record --prompts "$folder/prompts.jsonl" --temperature 0.8 "$folder/drawn.attention.jsonl"
judge --attention "$folder/given.attention.jsonl" > "$folder/given.results.jsonl"
judge --attention "$folder/drawn.attention.jsonl" > "$folder/drawn.results.jsonl"
for process in mixed recency heavy-hitters sinks topics; do
    judge --process "$process" > "$folder/$process.results.jsonl"
done
"$python" experiments/attention/table.py "$folder"/*.results.jsonl
