#!/usr/bin/env bash
# Makes the built-in tables of measured kernels anew (envs/src/deploy/measured/*.toml), to the byte:
#
#   pip download --no-deps aiconfigurator-core==0.12.0
#   scripts/measured.sh aiconfigurator_core-0.12.0-*.whl
#
# The wheel, or the folder it was unpacked to. KVTIDE names the program, built with --features perf-db; without it one is built.
set -euo pipefail
[ $# -eq 1 ] || { sed -n '2,8p' "$0" >&2; exit 2; }
database=$1
cd "$(dirname "$0")/.." || exit 2
case $database in /*) ;; *) database=$OLDPWD/$database ;; esac
if [ -z "${KVTIDE:-}" ]; then
    cargo build --release --locked -p kvtide --features perf-db
    KVTIDE=${CARGO_TARGET_DIR:-target}/release/kvtide
fi
out=envs/src/deploy/measured
while read -r system card; do
    "$KVTIDE" --quiet calibrate --perf-db "$database" --system "$system" --all-shapes --profile "$out/$card.toml" > /dev/null
    echo "$out/$card.toml: $(wc -c < "$out/$card.toml") bytes"
done <<'EOF'
a100_sxm a100-80g
h100_sxm h100
h200_sxm h200
b200_sxm b200
l40s l40s
rtx_pro_6000_server rtx-pro-6000
EOF
