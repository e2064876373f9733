#!/bin/sh
# What knowing is worth: rungs of `lookahead` over the best constant, as the results here were made; see README.md.
#   experiments/knowledge/run.sh [WORLD …]   every world, unless named: results/WORLD.jsonl; what is there is not run again
#   experiments/knowledge/run.sh table       README.md's tables out of results/
# KVTIDE names the program, TRACES the folder of traces, SEEDS other draws than its own.
set -eu
cd "$(dirname "$0")/../.."
kvtide=${KVTIDE:-target/release/kvtide}
traces=${TRACES:-../shared/traces}
out=experiments/knowledge/results
seeds=${SEEDS:-301..303}

# Traffic and targets, at the load at which the engine by itself attains about 60 % (80 where 60 is beyond what a clock can do).
world() {
    case $1 in
    azure) echo "--trace $traces/azure2023_conv_first40min.csv.zst --env llama-3-8b@rtx-4090-estimated --window 1640s..2340s \
        --slo ttft:2000,tpot:100,stall:3000 --loads 0.473" ;;
    code) echo "--workload code:rate=5,duration=600 --env llama-3-8b@rtx-4090-estimated --slo ttft:2000,tpot:100,stall:3000 --loads 0.2" ;;
    mooncake) echo "--trace $traces/mooncake_conversation_0-2358s.jsonl.zst --jitter 3s --env llama-3-8b@h100 \
        --window 1600s..2350s --slo ttft:5000,tpot:100,stall:3000 --loads 0.407" ;;
    mix) echo "--workload mix:rate=4,duration=900 --env llama-3-8b@h100 --slo ttft:2000,tpot:50,stall:2000 --loads 1.25" ;;
    reasoning) echo "--workload uniform:rate=1,duration=900,in=1000,out=3000,spread=0.66 --env llama-3-8b@h100 \
        --slo ttft:20000,tpot:50,stall:2000 --loads 1.89" ;;
    *) echo "no world $1" >&2; exit 2 ;;
    esac
}

# The best constant there on draws 201..205, but for the mix, where it is looked for on draws 401..402.
constant() {
    case $1 in
    azure) echo 0.01,victim=fewest-blocks,admission=shortest-on-time-first,budget=1024 ;;
    code) echo 0.35,admission=shortest-on-time-first,budget=512 ;;
    mooncake) echo 0.02,admission=shortest-on-time-first,budget=2048 ;;
    reasoning) echo 0.05,victim=most-blocks,admission=on-time-first,budget=4096 ;;
    mix)
        file=runs/knowledge/mix-constant
        if ! test -s "$file"; then
            mkdir -p runs/knowledge
            # shellcheck disable=SC2046
            "$kvtide" evaluate $(world mix) --seeds 401..402 --policy default --policy best-static:full --json -q |
                sed -n 's/.*"policy":"best-static:full","chosen":"fixed:\([^"]*\)".*/\1/p' | tail -1 > "$file"
        fi
        cat "$file"
        ;;
    esac
}

measure() {
    start=$(constant "$1")
    policies="--policy default --policy fixed:$start"
    from="watermark=$start"
    for knows in nothing hints lengths arrivals hints+arrivals everything; do
        policies="$policies --policy lookahead:$knows,$from"
    done
    for head in watermark victim admission budget; do
        policies="$policies --policy lookahead:everything,over=$head,$from"
    done
    mkdir -p runs/knowledge "$out"
    # shellcheck disable=SC2046,SC2086
    "$kvtide" evaluate $(world "$1") --seeds "$seeds" $policies --versus "fixed:$start" --out "runs/knowledge/$1.jsonl" > "$out/$1.txt"
    cp "runs/knowledge/$1.jsonl" "$out/$1.jsonl"
}

case ${1:-} in
table) exec "${PYTHON:-python3}" experiments/knowledge/table.py ;;
*)
    test $# -gt 0 || set -- azure code mooncake mix reasoning
    for name in "$@"; do measure "$name"; done
    ;;
esac
