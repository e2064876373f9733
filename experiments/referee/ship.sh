#!/bin/sh
# A policy that sb3-contrib's MaskablePPO learned, all the way to a node: imported, made a table, judged beside the engine's default, a
# watermark and the table that ships, and obeyed by vLLM's own scheduler. `experiments/referee/run.sh ship` calls it.
#   POLICY=FOLDER      what learn.py left, by default the first seed's
#   VLLM_PYTHON=FILE   a Python that has vLLM (scripts/vllm-check.sh makes one); without it that part is left out, and said so
set -eu
cd "$(dirname "$0")/../.."
kvtide=${KVTIDE:-target/release/kvtide-train}
policy=${POLICY:-runs/referee/sb3-maskable-kv-1}
results=experiments/referee/shipped
to=runs/referee/shipped
mkdir -p "$to"
"$kvtide" import-policy "$policy/import.toml" --out "$to/imported"
# Nothing is asked of the loss: it is told, and judged below.
"$kvtide" export --checkpoint "$to/imported" --max-loss 100 --out "$to/policy.kvt" 2> "$results-export.txt" || { cat "$results-export.txt" >&2; exit 1; }
cat "$results-export.txt"
"$kvtide" evaluate --workload uniform:n=1200,in=1000,out=3000,spread=0.66 --clients 128 --env llama-3-8b@h100 \
    --slo ttft:20000,tpot:50,stall:2000 --loads 1.25,1.36,1.47,1.61 --seeds 201..205 \
    --policy default --policy fixed:0.03 --policy "checkpoint:$to/imported" --policy "table:$to/policy.kvt" \
    --policy table:checkpoints/reasoning-core/policy.kvt > "$results.txt"
cat "$results.txt"
if [ -z "${VLLM_PYTHON:-}" ]; then
    echo "vLLM: left out, VLLM_PYTHON names no Python that has it" >&2
    exit 0
fi
PYTHONPATH=$SITE "$VLLM_PYTHON" -B python/checks/vllm_check.py --kvtide "$kvtide" --only reasoning --table "$to" > "$results-vllm.txt"
cat "$results-vllm.txt"
