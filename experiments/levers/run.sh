#!/bin/sh
# Measures what constants attain that differ in what a step may compute, as the results here were made; see README.md.
#   experiments/levers/run.sh [budgets|finer|spread|chunks|changing] [WORLD@CLOCK …]   all of them, of every world, unless named: results/*.jsonl
#   experiments/levers/run.sh table                                       README.md out of results/
# KVTIDE names the program, TRACES the folder of traces, SEEDS other draws than its own. What is run lies in runs/levers and is not run again.
set -eu
cd "$(dirname "$0")/../.."
kvtide=${KVTIDE:-target/release/kvtide}
traces=${TRACES:-../shared/traces}
python=${PYTHON:-python3}
raw=runs/levers
out=experiments/levers/results
reordered=admission=shortest-on-time-first

# Traffic and targets of a world, those of experiments/run.sh where it has it.
world() {
    chat="--slo ttft:2000,tpot:100,stall:3000"
    case $1 in
    code) echo "--workload code:rate=5,duration=600 $chat" ;;
    azure) echo "--trace $traces/azure2023_conv_first40min.csv.zst --window 1640s..2340s $chat" ;;
    mix) echo "--workload mix:rate=3,duration=600 $chat" ;;
    mooncake) echo "--trace $traces/mooncake_conversation_0-2358s.jsonl.zst --jitter 3s --window 1600s..2350s --slo ttft:5000,tpot:100,stall:3000" ;;
    agentic) echo "--workload agentic:rate=0.17,duration=900 --slo ttft:2000,tpot:50,stall:2000" ;;
    tight) echo "--workload mix:rate=3,duration=600 --slo ttft:2000,tpot:50,stall:2000" ;;
    coding) echo "--trace $traces/kvct_agentic_sessions_0001-0559.tar.zst --window 60000s..63600s --slo ttft:5000,tpot:50,stall:3000" ;;
    reasoning) echo "--workload uniform:n=1200,in=1000,out=3000,spread=0.66 --clients 128 --slo ttft:20000,tpot:50,stall:2000" ;;
    *) echo "no world $1" >&2; exit 2 ;;
    esac
}

# Draws of a world: fewer where runs take long, or the same traffic has more of them by another clock.
draws() {
    case $2:$1 in
    chunks:code@* | budgets:mooncake@* | [bf]*:code@rtx-4090 | budgets:code@rtx-4090-estimated | [bf]*:azure@rtx-4090 | \
        budgets:azure@rtx-4090-estimated | budgets:mix@h100-datasheet) echo "${SEEDS:-301..305}" ;;
    *) echo "${SEEDS:-301..303}" ;;
    esac
}

# Loads at which the engine as it comes, at 2,048 tokens a step, attains about .95, .8, .6 and .4 of the first draw. Of code they are
# set: a step of 2,048 tokens takes longer than its target of a token, so that nothing but a load near none would attain .8.
loads() {
    case $1 in code) echo 0.1,0.2,0.3,0.4 && return ;; esac
    # shellcheck disable=SC2046
    "$kvtide" evaluate $(world "$1") --env "llama-3-8b@$2" --loads auto --seeds 301 --policy default --json -q |
        sed -n 's/.*"type":"load".*"load":\([0-9.]*\),.*/\1/p' | paste -s -d, -
}

# evaluated NAME ARGUMENTS…: the runs of an evaluation, once.
evaluated() {
    file=$raw/$1.jsonl
    shift
    grep -q '"type":"finished"' "$file" 2> /dev/null && return
    rm -f "$file"
    "$kvtide" evaluate "$@" --out "$file" -q > /dev/null
}

# Choices of today's heads for WORLD@CLOCK: admission in two orders over watermarks beyond the grid of today, and victims; the few that
# attain most of these where the same traffic has all of them by another clock, or runs take long.
constants() {
    echo "--policy default --policy fixed:0.01"
    for watermark in 0.01 0.12 0.35 0.8; do echo "--policy fixed:$watermark,$reordered"; done
    case $1 in code@rtx-4090 | azure@rtx-4090 | mix@h100-datasheet | mooncake@h100-datasheet) ;; *) return ;; esac
    for watermark in 0 0.05 0.25 0.5 0.6 0.7 0.9; do echo "--policy fixed:$watermark,$reordered"; done
    for watermark in 0.05 0.12 0.5; do echo "--policy fixed:$watermark"; done
    for watermark in 0.01 0.12 0.5; do echo "--policy fixed:$watermark,admission=on-time-first"; done
    for victim in fewest-blocks most-slack least-progress; do echo "--policy fixed:0.01,victim=$victim,$reordered"; done
}

budgets() {
    for at in "$@"; do
        of=$(loads "${at%@*}" "${at#*@}")
        case $at in
        code* | azure* | mix* | mooncake*) powers="128 256 512 1024 2048 4096 8192 16384" ;;
        *@h100-datasheet) powers="512 1024 2048 4096" ;;
        *) powers="256 512 1024 2048 4096 16384" ;;
        esac
        for tokens in $powers; do
            more=
            case $tokens in 16384) more="--policy ppas --policy ppas:2,1024 --policy ppas:2,512 --policy ppas:1,512 --policy ppas:1,256" ;; esac
            # shellcheck disable=SC2046,SC2086
            evaluated "budgets-$at-$tokens" $(world "${at%@*}") --env "llama-3-8b@${at#*@}" --loads "$of" --seeds "$(draws "$at" budgets)" \
                --set "max_num_batched_tokens=$tokens" $(constants "$at") $more
        done
        "$python" experiments/levers/condense.py "$raw"/budgets-"$at"-[0-9]*.jsonl > "$out/budgets-$at.jsonl"
    done
}

# finer WORLD@CLOCK …: budgets between the powers of two.
finer() {
    for at in "$@"; do
        of=$(loads "${at%@*}" "${at#*@}")
        case $at in *rtx-4090*) between="320 384 448 512 576 640 768 896 1024" ;; *) between="1024 1280 1536 1792 2048 2560 3072 4096" ;; esac
        for tokens in $between; do
            # shellcheck disable=SC2046,SC2086
            evaluated "finer-$at-$tokens" $(world "${at%@*}") --env "llama-3-8b@${at#*@}" --loads "$of" --seeds "$(draws "$at" finer)" \
                --set "max_num_batched_tokens=$tokens" --policy "fixed:0.01,$reordered" --policy "fixed:0.35,$reordered" --policy "fixed:0.8,$reordered"
        done
        "$python" experiments/levers/condense.py "$raw"/finer-"$at"-[0-9]*.jsonl > "$out/finer-$at.jsonl"
    done
}

# spread WORLD@CLOCK …: budgets by clocks drawn within the spread of the profile's constants.
spread() {
    for at in "$@"; do
        of=$(loads "${at%@*}" "${at#*@}" | cut -d, -f2,3)
        for tokens in 256 512 1024 2048 4096; do
            # shellcheck disable=SC2046,SC2086
            evaluated "spread-$at-$tokens" $(world "${at%@*}") --env "llama-3-8b@${at#*@}" --loads "$of" --seeds 301 \
                --set "max_num_batched_tokens=$tokens" --clock-spread 10 --policy "fixed:0.01,$reordered" --policy "fixed:0.8,$reordered"
        done
        "$python" experiments/levers/condense.py "$raw"/spread-"$at"-[0-9]*.jsonl > "$out/spread-$at.jsonl"
    done
}

# chunks WORLD@CLOCK …: how long a chunk of one prompt may be, and how many may run.
chunks() {
    for at in "$@"; do
        of=$(loads "${at%@*}" "${at#*@}")
        small="512:threshold=128 512:threshold=256 1024:threshold=256 1024:threshold=512 2048:threshold=256 512:seqs=8 512:seqs=16 512:seqs=32
            512:seqs=64 512:seqs=128 2048:seqs=8 2048:seqs=16 2048:seqs=128 8192:threshold=512 8192:threshold=1024 8192:threshold=2048"
        policies=$(constants few)
        case $at in *h100*) small='' policies="--policy default --policy fixed:0.01,$reordered --policy fixed:0.12,$reordered" ;; esac
        for set in $small 2048:threshold=512 2048:threshold=1024 2048:seqs=32 2048:seqs=64; do
            value=${set#*=}
            case $set in
            *threshold*) setting=long_prefill_token_threshold=$value ;;
            *) setting=max_num_seqs=$value ;;
            esac
            # shellcheck disable=SC2046,SC2086
            evaluated "chunks-$at-$(echo "$set" | tr ':=' '--')" $(world "${at%@*}") --env "llama-3-8b@${at#*@}" --loads "$of" \
                --seeds "$(draws "$at" chunks)" --set "max_num_batched_tokens=${set%%:*}" --set "$setting" $policies
        done
        "$python" experiments/levers/condense.py "$raw"/chunks-"$at"-[0-9]*.jsonl > "$out/chunks-$at.jsonl"
    done
}

# A draw of traffic that changes every 90 s for 18 minutes: changed NAME SEED FILE.
changed() {
    case $1 in
    # Conversations and code by turns, at two loads each.
    kinds) stretches="chat:1.6 code:0.8 chat:2.6 code:2 chat:1.6 code:0.8 chat:2.6 code:2 chat:1.6 code:0.8 chat:2.6 code:2" ;;
    # Conversations whose load goes up and down.
    steps) stretches="chat:1.4 chat:2.2 chat:3 chat:1.4 chat:3 chat:2.2 chat:1.4 chat:2.2 chat:3 chat:1.4 chat:3 chat:2.2" ;;
    # Conversations, code and reasoning on a large card.
    tasks) stretches="chat:8 reasoning:1.2 code:8 chat:11 reasoning:0.8 code:12 chat:8 reasoning:1.2 code:8 chat:11 reasoning:0.8 code:12" ;;
    *) echo "no changing traffic $1" >&2; exit 2 ;;
    esac
    number=0
    for stretch in $stretches; do
        "$kvtide" trace generate "${stretch%:*}:rate=${stretch#*:},duration=90,seed=$2$number" "$3.part" -q
        "$python" experiments/levers/shift.py "$3.part" $((number * 90))
        number=$((number + 1))
    done > "$3"
    rm -f "$3.part"
}

# changing NAME@CLOCK …: what constants attain by stretch of traffic that changes.
changing() {
    for at in "$@"; do
        name=${at%@*}
        case $name in tasks) draws="1 2 3" ;; *) draws="1 2 3 4 5" ;; esac
        for seed in $draws; do
            case $name in
            mix | azure | mooncake) of=$(loads "$name" "${at#*@}" | cut -d, -f2,3) traffic="$(world "$name") --loads $of --seeds 30$seed" ;;
            *)
                file=$raw/$name-$seed.jsonl
                test -s "$file" || changed "$name" "$seed" "$file"
                traffic="--trace $file --slo ttft:2000,tpot:100,stall:3000 --loads 1 --seeds 1"
                ;;
            esac
            for tokens in 128 256 512 1024 2048 4096 8192; do
                # shellcheck disable=SC2046,SC2086
                evaluated "changing-$at-$tokens-$seed" $traffic --env "llama-3-8b@${at#*@}" --set "max_num_batched_tokens=$tokens" $(constants few)
            done
        done
        "$python" experiments/levers/condense.py --stretch 90 "$raw"/changing-"$at"-[0-9]*.jsonl > "$out/changing-$at.jsonl"
    done
}

every="code@rtx-4090 azure@rtx-4090 mix@h100-datasheet mooncake@h100-datasheet code@rtx-4090-estimated azure@rtx-4090-estimated
    mooncake@h100 mix@h100 tight@h100 reasoning@h100 agentic@h100-datasheet agentic@h100"
measured="code@rtx-4090-estimated azure@rtx-4090-estimated agentic@h100"
finer="code@rtx-4090 azure@rtx-4090"
spread="code@rtx-4090-estimated azure@rtx-4090-estimated"
change="kinds@rtx-4090-estimated steps@rtx-4090-estimated tasks@h100"
what=${1:-all}
test $# -eq 0 || shift
mkdir -p "$raw" "$out"
# shellcheck disable=SC2086
case $what in
budgets) test $# -gt 0 || set -- $every; budgets "$@" ;;
chunks) test $# -gt 0 || set -- $measured; chunks "$@" ;;
finer) test $# -gt 0 || set -- $finer; finer "$@" ;;
spread) test $# -gt 0 || set -- $spread; spread "$@" ;;
changing) test $# -gt 0 || set -- $change; changing "$@" ;;
all) budgets $every; spread $spread; finer $finer; chunks $measured; changing $change ;;
table) exec "$python" experiments/levers/table.py ;;
*) echo "run.sh [budgets|finer|spread|chunks|changing|table], not $what" >&2; exit 2 ;;
esac
