#!/bin/sh
# Trains, exports and judges one scenario as the results here were made; see README.md.
#   experiments/run.sh train NAME            into runs/NAME; NAME may be ablations/NAME
#   experiments/run.sh ship NAME             its policy and the table made of it into checkpoints/NAME
#   experiments/run.sh retain NAME           which cached blocks survive, learned for that table, into runs/NAME-retention; where a
#                                            tree gains, the table gets it
#   experiments/run.sh judge SCENARIO [NAME] checkpoint and guarded table of NAME, beside the references; NAME is SCENARIO's own
#                                            unless given; further --policy options may follow
#   experiments/run.sh table|cards           the results as Markdown; the cards in checkpoints/
set -eu
cd "$(dirname "$0")/.."
kvtide=${KVTIDE:-target/release/kvtide}
what=$1
shift
case $what in table | cards) exec "${PYTHON:-python3}" "experiments/$what.py" ;; esac
path=$1 name=$(basename "$1")
shift

# Traffic none of the checkpoints has seen: later windows of the traces, other seeds of the generators.
world() {
    traces=${TRACES:-../shared/traces}
    # Clocks of kernels by shape, on which they were trained as well.
    reasoning="--env llama-3-8b@h100 --slo ttft:20000,tpot:50,stall:2000"
    case $1 in *-sglang*) reasoning="$reasoning --host sglang-0.5" ;; esac
    case $1 in *-tier*) reasoning="$reasoning --host kvtide --set num_cpu_blocks=16384" ;; esac
    case $1 in
    chat-24g-generated) echo "--workload chat:rate=5,duration=720 --env llama-3-8b@rtx-4090-estimated --slo ttft:2000,tpot:100,stall:3000" ;;
    chat-24g-code) echo "--workload code:rate=5,duration=600 --env llama-3-8b@rtx-4090-estimated --slo ttft:2000,tpot:100,stall:3000" ;;
    chat-24g*) echo "--trace $traces/azure2023_conv_first40min.csv.zst --env llama-3-8b@rtx-4090-estimated --window 1640s..2340s \
        --slo ttft:2000,tpot:100,stall:3000" ;;
    chat-4x80g) echo "--trace $traces/mooncake_conversation_0-2358s.jsonl.zst --jitter 3s --scale stretch --env llama-3-8b@4xh100 \
        --window 1600s..2350s --slo ttft:5000,tpot:100,stall:3000" ;;
    chat-80g*) echo "--trace $traces/mooncake_conversation_0-2358s.jsonl.zst --jitter 3s --env llama-3-8b@h100 \
        --window 1600s..2350s --slo ttft:5000,tpot:100,stall:3000" ;;
    reasoning*-open) echo "--workload uniform:rate=1,duration=900,in=1000,out=3000,spread=0.66 $reasoning" ;;
    reasoning*-heavy) echo "--workload lognormal:n=1200,in=1000,in_p95=2500,out=3000,out_p95=9000 --clients 128 $reasoning" ;;
    reasoning*) echo "--workload uniform:n=1200,in=1000,out=3000,spread=0.66 --clients 128 $reasoning" ;;
    # Days of other seeds than those of training and validation, which are drawn from that of the search.
    day-24g*) echo "--workload day:rate=0.25 --env llama-3-8b@rtx-4090-estimated --slo ttft:2000,tpot:100,stall:3000" ;;
    day-80g*) echo "--workload day:rate=4 --env llama-3-8b@h100 --slo ttft:2000,tpot:50,stall:2000" ;;
    agentic-coding) echo "--trace $traces/kvct_agentic_sessions_0001-0559.tar.zst --env llama-3-8b@h100 \
        --window 60000s..63600s --slo ttft:5000,tpot:50,stall:3000" ;;
    agentic*) echo "--workload agentic:rate=0.17,duration=900 --env llama-3-8b@h100 --slo ttft:2000,tpot:50,stall:2000" ;;
    *) echo "no scenario $1" >&2; exit 2 ;;
    esac
}

# The checkpoint that a scenario is about.
subject() {
    case $1 in
    *-generated) echo "${1%-generated}" ;;
    *-open) echo "${1%-open}" ;;
    *-heavy) echo "${1%-heavy}" ;;
    agentic-coding) echo agentic ;;
    chat-24g-code) echo chat-24g ;;
    *) echo "$1" ;;
    esac
}

# By the engine's default; of code those at which a step of the engine's own budget takes longer than a token may, whatever the load.
loads() {
    case $1 in chat-24g-code) echo 0.1,0.2,0.3,0.4 ;; *) echo auto ;; esac
}

case $what in
train) "$kvtide" train --experiment "experiments/$path.toml" --out "runs/$name" "$@" ;;
ship)
    mkdir -p "checkpoints/$name"
    cp "runs/$name/policy/"* "checkpoints/$name/"
    "$kvtide" export --checkpoint "checkpoints/$name" --out "checkpoints/$name/policy.kvt" \
        --frontier "experiments/results/$name-size.svg" "$@"
    ;;
retain)
    rm -rf "runs/$name-retention"
    "$kvtide" retain --table "checkpoints/$name/policy.kvt" --experiment "experiments/$path.toml" --out "runs/$name-retention" "$@" \
        | tee "experiments/results/$name-retention.txt" || true
    if [ -e "runs/$name-retention/policy.kvt" ]; then cp "runs/$name-retention/policy.kvt" "checkpoints/$name/policy.kvt"; fi
    ;;
judge)
    policy=$(subject "$name")
    case ${1:-} in "" | -*) ;; *) policy=$1 && shift ;; esac
    checkpoint=checkpoints/$policy
    profile=$("$kvtide" inspect "$checkpoint/policy.kvt" | sed -n 's/^profile *\([a-z]*\).*/\1/p')
    fallback=$("$kvtide" inspect "$checkpoint/policy.kvt" | sed -n 's/^ *fallback *\([0-9.]*\)$/\1/p')
    # shellcheck disable=SC2046
    "$kvtide" evaluate $(world "$name") --loads "$(loads "$name")" --seeds 201..205 --policy default --policy best-fixed \
        --policy past-future --policy primal-dual --policy "fixed:$fallback" --policy best-train \
        --policy "best-static-once:$profile" --policy "best-static:$profile" --policy "table:$checkpoint/policy.kvt" \
        --policy "checkpoint:$checkpoint" "$@" --versus best-fixed --versus "fixed:$fallback" \
        --out "runs/$name.jsonl" --report "runs/$name.html" > "experiments/results/$name.txt"
    # Without the thousands of constants that hindsight looked at.
    grep -v '"type":"tried"' "runs/$name.jsonl" > "experiments/results/$name.jsonl"
    ;;
*) echo "train, ship, retain, judge, table or cards?" >&2; exit 2 ;;
esac
