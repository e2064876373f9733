#!/bin/sh
# Trains, judges and exports one scenario as the results here were made; see README.md.
#   experiments/run.sh train|judge|export NAME, where NAME may be ablations/NAME
#   experiments/run.sh table
set -eu
cd "$(dirname "$0")/.."
if [ "$1" = table ]; then exec python3 experiments/table.py; fi
kvtide=${KVTIDE:-target/release/kvtide}
what=$1 path=$2 name=$(basename "$2")
shift 2

# Traffic none of the checkpoints has seen: later windows of the traces, other seeds of the generators.
world() {
    traces=${TRACES:-../shared/traces}
    case $1 in
    chat-24g-generated) echo "--workload chat:rate=5,duration=720 --env llama-3-8b@rtx-4090 --slo ttft:2000,tpot:100,stall:3000" ;;
    chat-24g*) echo "--trace $traces/azure2023_conv_first40min.csv.zst --env llama-3-8b@rtx-4090 --window 1640s..2340s \
        --slo ttft:2000,tpot:100,stall:3000" ;;
    chat-80g*) echo "--trace $traces/mooncake_conversation_0-2358s.jsonl.zst --jitter 3s --env llama-3-8b@h100 \
        --window 1600s..2350s --slo ttft:5000,tpot:100,stall:3000" ;;
    reasoning*open) echo "--workload uniform:rate=1,duration=900,in=1000,out=3000,spread=0.66 --env llama-3-8b@h100 \
        --slo ttft:20000,tpot:50,stall:2000 --set num_cpu_blocks=16384" ;;
    reasoning-victim) echo "--workload uniform:n=1200,in=1000,out=3000,spread=0.66 --clients 128 --env llama-3-8b@h100 \
        --slo ttft:20000,tpot:50,stall:2000" ;;
    reasoning*) echo "--workload uniform:n=1200,in=1000,out=3000,spread=0.66 --clients 128 --env llama-3-8b@h100 \
        --slo ttft:20000,tpot:50,stall:2000 --set num_cpu_blocks=16384" ;;
    agentic-coding) echo "--trace $traces/kvct_agentic_sessions_0001-0559.tar.zst --env llama-3-8b@h100 \
        --window 60000s..63600s --slo ttft:5000,tpot:50,stall:3000" ;;
    agentic*) echo "--workload agentic:rate=0.17,duration=900 --env llama-3-8b@h100 --slo ttft:2000,tpot:50,stall:2000" ;;
    *) echo "no scenario $1" >&2; exit 2 ;;
    esac
}

case $what in
train) "$kvtide" train --experiment "experiments/$path.toml" --out "runs/$name" "$@" ;;
judge)
    # shellcheck disable=SC2046
    "$kvtide" evaluate $(world "$name") --engine v1 --loads auto --seeds 201..205 --policy default --policy best-fixed "$@" \
        --out "experiments/results/$name.jsonl" --report "runs/$name.html" > "experiments/results/$name.txt"
    ;;
export)
    "$kvtide" export --checkpoint "checkpoints/$name" --out "checkpoints/$name/policy.kvt" \
        --frontier "experiments/results/$name-size.svg" "$@"
    ;;
*) echo "train, judge or export?" >&2; exit 2 ;;
esac
