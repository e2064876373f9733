#!/bin/sh
# Judges clocks on served runs, as the results here were made; see README.md.
#   experiments/clock/run.sh [judge]   every run: results/*.jsonl and four pictures, in a minute or two
#   experiments/clock/run.sh table     README.md out of results/
# KVTIDE names the program, SHARED the folder of measured data.
set -eu
cd "$(dirname "$0")/../.."
kvtide=${KVTIDE:-target/release/kvtide}
shared=${SHARED:-../shared}
out=experiments/clock/results

# plot NAME: the option that draws it, of what README.md shows.
plot() {
    case $1 in
    rtx-pro-6000-none | rtx-4090-datasheet-all | a100-host | rtx-5090-all-half-3B) echo "--plot $out/$1.svg" ;;
    esac
}

# served NAME RUN ENV FIT: a run that a server recorded.
served() {
    "$kvtide" calibrate --measured "$shared/traces/$2" --env "$3" --fit "$4" $(plot "$1") --json > "$out/$1.jsonl"
}

# summaries NAME ARGUMENTS…: what clients saw of many.
summaries() {
    name=$1
    shift
    "$kvtide" calibrate --measured "$shared/measured/token-budget" "$@" $(plot "$name") --json > "$out/$name.jsonl"
}

judge() {
    mkdir -p "$out"
    for fit in none host all; do
        served "rtx-pro-6000-$fit" measured_vllm_RTXPRO6000_llama3.1-8b.tar.zst llama-3-8b@rtx-pro-6000 "$fit"
        served "rtx-4090-estimated-$fit" measured_vllm_RTX4090_llama3.1-8b.tar.zst llama-3-8b@rtx-4090-estimated "$fit"
    done
    served rtx-pro-6000-datasheet-none measured_vllm_RTXPRO6000_llama3.1-8b.tar.zst llama-3-8b@rtx-pro-6000-datasheet none
    served rtx-4090-datasheet-none measured_vllm_RTX4090_llama3.1-8b.tar.zst llama-3-8b@rtx-4090 none
    served rtx-4090-datasheet-all measured_vllm_RTX4090_llama3.1-8b.tar.zst llama-3-8b@rtx-4090 all
    summaries a100-datasheet-none --only gpu=A100 --env @a100-80g-datasheet --fit none
    summaries a100-none --only gpu=A100 --env @a100-80g --fit none
    summaries a100-host --only gpu=A100 --env @a100-80g --fit host
    summaries a100-host-half --only gpu=A100 --env @a100-80g --fit host --fit-loads half
    summaries a100-host-other-half --only gpu=A100 --env @a100-80g --fit host --fit-loads other-half
    summaries rtx-5090-datasheet-none --only gpu=RTX5090 --env @rtx-5090 --fit none
    summaries rtx-5090-none --only gpu=RTX5090 --env @rtx-5090-estimated --fit none
    for loads in half other-half; do
        summaries "rtx-5090-host-$loads" --only gpu=RTX5090 --env @rtx-5090-estimated --fit host --fit-loads "$loads"
        summaries "rtx-5090-all-$loads" --only gpu=RTX5090 --env @rtx-5090-estimated --fit all --fit-loads "$loads"
        for model in 0.5B 3B; do
            summaries "rtx-5090-all-$loads-$model" --only "gpu=RTX5090,model=Qwen/Qwen2.5-$model-Instruct" --env @rtx-5090-estimated \
                --fit all --fit-loads "$loads"
        done
    done
}

case ${1:-judge} in
judge) judge ;;
table) exec "${PYTHON:-python3}" experiments/clock/table.py ;;
*) echo "run.sh [judge|table], not $1" >&2; exit 2 ;;
esac
