#!/bin/sh
# Measures orders of eviction by what requests declare beside LRU and the learned retention, as the results here were made; see README.md.
#   experiments/intent/run.sh [pool|host] [WORLD …]   all of them, of every world, unless named: results/*.jsonl
#   experiments/intent/run.sh table                         README.md out of results/
# KVTIDE names the program, TRACES the folder of traces, SEEDS other draws than its own. What is run lies in runs/intent and is not run again.
set -eu
cd "$(dirname "$0")/../.."
kvtide=${KVTIDE:-target/release/kvtide}
traces=${TRACES:-../shared/traces}
python=${PYTHON:-python3}
raw=runs/intent
out=experiments/intent/results
shipped=table:checkpoints/agentic/policy.kvt
draws=${SEEDS:-301 302 303 304 305}

# Traffic and targets of draw SEED of a world: world NAME SEED.
world() {
    case $1 in
    agentic) echo "--workload agentic:rate=0.17,duration=900 --slo ttft:2000,tpot:50,stall:2000 --seeds $2" ;;
    mooncake) echo "--trace $traces/mooncake_conversation_0-2358s.jsonl.zst --jitter 3s --window 1600s..2350s --slo ttft:5000,tpot:100,stall:3000 --seeds $2" ;;
    # The same sessions beside long prompts of class batch that nobody asks for again.
    passing) echo "--trace $(passing "$2") --slo ttft:2000,tpot:50,stall:2000 --seeds 1" ;;
    # A third of the sessions each of the classes document and batch, and the default targets of agentic.
    classes) echo "--trace $(classes "$2") --slo ttft:2000,tpot:50,stall:2000 --seeds 1" ;;
    *) echo "no world $1" >&2; exit 2 ;;
    esac
}

# The file of a draw of agentic sessions, each of one class.
classes() {
    file=$raw/classes-$1.jsonl
    if ! test -s "$file"; then
        "$kvtide" trace generate "agentic:rate=0.2,duration=900,seed=$1" "$file.part" -q
        "$python" experiments/intent/classes.py "$file.part" > "$file.whole"
        mv "$file.whole" "$file"
        rm -f "$file.part"
    fi
    echo "$file"
}

# The file of a draw of sessions, and of prompts without any.
passing() {
    file=$raw/passing-$1.jsonl
    if ! test -s "$file"; then
        "$kvtide" trace generate "agentic:rate=0.15,duration=900,seed=$1" "$file.part" -q
        "$kvtide" trace generate "uniform:rate=0.6,duration=900,in=6000,out=100,spread=0.5,seed=$1" "$file.once" -q
        "$python" experiments/intent/classes.py "$file.part" "$file.once" > "$file.whole"
        mv "$file.whole" "$file"
        rm -f "$file.part" "$file.once"
    fi
    echo "$file"
}

# Loads at which LRU attains about .95, .8, .6 and .4 of the first draw.
loads() {
    file=$raw/loads-$1
    if ! test -s "$file"; then
        # shellcheck disable=SC2046
        "$kvtide" evaluate $(world "$1" 301) --env llama-3-8b@h100 --loads auto --policy default --json -q |
            sed -n 's/.*"type":"load".*"load":\([0-9.]*\),.*/\1/p' | paste -s -d, - > "$file"
    fi
    cat "$file"
}

# evaluated NAME ARGUMENTS…: the runs of an evaluation, once.
evaluated() {
    file=$raw/$1.jsonl
    shift
    grep -q '"type":"finished"' "$file" 2> /dev/null && return
    rm -f "$file"
    "$kvtide" evaluate "$@" --out "$file" -q > /dev/null
}

pool() {
    for name in "$@"; do
        for seed in $draws; do
            for order in lru arc t-lru intent-aware deadline-aware; do
                # The table's tree needs classes, which are in place of LRU and change nothing until it chooses them; elsewhere the
                # other heads of the table decide alone.
                policies="--policy default --policy $shipped"
                case $order in lru) policies="$policies --policy $shipped,retention=normal" ;; esac
                # shellcheck disable=SC2046,SC2086
                evaluated "pool-$name-$order-$seed" $(world "$name" "$seed") --env llama-3-8b@h100 --loads "$(loads "$name")" \
                    --set "eviction=$order" $policies
            done
        done
        "$python" experiments/intent/condense.py "$raw"/pool-"$name"-*.jsonl > "$out/pool-$name.jsonl"
    done
}

# Half and twice the GPU pool on the host.
host() {
    for name in "$@"; do
        for seed in ${SEEDS:-301 302 303}; do
            for blocks in 14245 56980; do
                for cache in write-through write-back; do
                    for order in lru arc intent-aware deadline-aware; do
                        # shellcheck disable=SC2046
                        evaluated "host-$name-$cache-$blocks-$order-$seed" $(world "$name" "$seed") --env llama-3-8b@h100 \
                            --loads "$(loads "$name")" --set "num_cpu_blocks=$blocks" --set "host_cache=$cache" \
                            --set "host_cache_order=$order" --policy default
                    done
                done
            done
        done
        "$python" experiments/intent/condense.py "$raw"/host-"$name"-*.jsonl > "$out/host-$name.jsonl"
    done
}

what=${1:-all}
test $# -eq 0 || shift
mkdir -p "$raw" "$out"
case $what in
pool) test $# -gt 0 || set -- agentic classes passing mooncake; pool "$@" ;;
host) test $# -gt 0 || set -- agentic; host "$@" ;;
all) pool agentic classes passing mooncake; host agentic ;;
table) exec "$python" experiments/intent/table.py ;;
*) echo "run.sh [pool|host|table], not $what" >&2; exit 2 ;;
esac
