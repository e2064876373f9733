#!/bin/sh
# Every shipped table on vLLM's own V1 scheduler, beside what `kvtide simulate` says of the same traffic; budgets that change all
# the time and classes of cached blocks on it; the policy for its offload tier; and what that scheduler serves, recorded, beside
# what it was given.
#
#   scripts/vllm-check.sh           all scenarios (python/checks/scenarios.toml)
#   scripts/vllm-check.sh --quick   two of them and less of each: five minutes at most, once the environment exists
#   scripts/vllm-check.sh --cost    what the adapter costs vLLM's scheduler, and whether that is below 2 %
#   scripts/vllm-check.sh --needs   only whether what is needed is here; of kvtide, only that it can be built
#
# Needs no GPU. The first call makes a virtual environment of about 7 GB (vLLM's wheel and torch, which brings CUDA's
# libraries whether they are used or not) in VLLM_CHECK_DIR (target/vllm-check). SIMULATOR names a built kvtide. What is
# needed is looked for before anything is fetched.
set -eu
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
folder=${VLLM_CHECK_DIR:-target/vllm-check}
simulator=${SIMULATOR:-target/release/kvtide}
venv=$folder/venv
gigabytes=9

missing() {
    echo "vllm-check: $1" >&2
    exit 2
}

mode=${1:-}
case $mode in "" | --quick | --cost | --needs) ;; *) missing "no option $mode: --quick, --cost or --needs" ;; esac
if [ "$mode" = "" ] || [ "$mode" = --quick ]; then
    "$simulator" --version > /dev/null 2>&1 || missing "$simulator does not run: cargo build --release --bin kvtide, or set SIMULATOR"
fi
command -v cargo > /dev/null || missing "cargo is not here: the wheel is built from source"
mkdir -p "$folder"
if [ ! -e "$venv/done" ]; then
    "$python" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' \
        || missing "vLLM 0.33 and the wheel need Python 3.11 to 3.13, $("$python" -V 2>&1) is here; set PYTHON"
    "$python" -c 'import ensurepip, venv' 2> /dev/null || missing "$python has no venv: install it (Debian: python3-venv)"
    free=$(df -Pk "$folder" | awk 'NR == 2 { print int($4 / 1048576) }')
    [ "$free" -ge "$gigabytes" ] || missing "$folder has $free GB free, $gigabytes are needed; set VLLM_CHECK_DIR"
    "$python" -m pip index versions vllm 2> /dev/null | grep -q '0\.33\.0' \
        || missing "the package index is not reached, or has no vllm 0.33.0"
    [ "$mode" != --needs ] || exit 0
    "$python" -m venv --clear "$venv"
    "$venv/bin/pip" install --quiet torch==2.14.0
    "$venv/bin/pip" install --quiet --no-deps vllm==0.33.0
    "$venv/bin/pip" install --quiet --no-deps -r python/checks/vllm-requirements.txt
    "$venv/bin/pip" install --quiet maturin==1.16.0
    touch "$venv/done"
fi
[ "$mode" != --needs ] || exit 0
rm -rf "$folder/wheels" "$folder/site"
"$venv/bin/maturin" build --quiet --release --manifest-path python/Cargo.toml --out "$folder/wheels"
"$venv/bin/pip" install --quiet --no-deps --target "$folder/site" "$folder"/wheels/*.whl
run() {
    PYTHONPATH=$folder/site "$venv/bin/python" -B "$@"
}
case $mode in
    --cost) run python/checks/adapter_cost.py --limit 2 ;;
    *)
        wrong=0
        run python/checks/vllm_check.py --kvtide "$simulator" $mode || wrong=1
        run python/checks/levers_check.py --kvtide "$simulator" $mode || wrong=1
        run python/checks/offload_check.py --kvtide "$simulator" ${mode:+--chunks 1600,6500} || wrong=1
        run python/checks/record_check.py --kvtide "$simulator" $mode || wrong=1
        exit $wrong
        ;;
esac
