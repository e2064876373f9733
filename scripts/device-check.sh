#!/bin/sh
# Everything there is to find out about a machine's GPU, in one run of at most ten minutes: kernels against their
# references, real blocks under random schedules, speeds beside ceilings, a hardware profile with its errors on what was held
# out, and traffic on the device beside the model. Where there is no device, what needs none runs and the rest is reported as
# skipped.
#
#   scripts/device-check.sh [FOLDER]        FOLDER: where report.md, report.json, profile.toml and log go (device-report)
#
# Needs no Rust toolchain: with `kvtide-device` and the test program of the GPU beside it (`make device-binaries`), from
#   KVTIDE_DEVICE_BINARIES   their folder (target/device-binaries)
# NVRTC and cuBLAS are the machine's own: of CUDA's toolkit, of PyTorch's wheels, or where KVTIDE_CUDA_LIBRARIES says.
# Clocks are left alone, and the card is never reset.
set -u
cd "$(dirname "$0")/.."
folder=${1:-device-report}
binaries=${KVTIDE_DEVICE_BINARIES:-target/device-binaries}
mkdir -p "$folder"
log=$folder/log
: > "$log"

say() { printf '%s\n' "$*" | tee -a "$log"; }

program=$binaries/kvtide-device
if [ ! -x "$program" ]; then
    say "$program is not there: make device-binaries builds it"
    exit 2
fi

# Where CUDA's libraries are, if the loader does not know: beside a PyTorch, or in a toolkit.
for place in "${KVTIDE_CUDA_LIBRARIES:-}" \
    "$(python3 -c 'import os, nvidia; print(os.path.join(list(nvidia.__path__)[0], "cu13", "lib"))' 2>/dev/null)" \
    /usr/local/cuda/lib64 /usr/local/cuda/targets/x86_64-linux/lib third_party/libtorch/nvidia/cu13/lib; do
    if [ -n "$place" ] && [ -e "$place/libnvrtc.so.13" ]; then
        KVTIDE_CUDA_LIBRARIES=$place
        LD_LIBRARY_PATH=$place${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
        export KVTIDE_CUDA_LIBRARIES LD_LIBRARY_PATH
        break
    fi
done
commit=${KVTIDE_COMMIT:-$(cat "$binaries/commit" 2>/dev/null || echo unknown)}
export KVTIDE_CACHE=${KVTIDE_CACHE:-$folder/cache}

say "$(date -u '+%F %T') UTC, commit $commit"
if command -v nvidia-smi > /dev/null; then
    nvidia-smi --query-gpu=name,driver_version,memory.total,clocks.sm,clocks.mem,temperature.gpu,power.draw --format=csv 2>&1 | tee -a "$log"
fi
"$program" info 2>&1 | tee -a "$log"

# The tests that need a device; without one they say so.
status=0
for test in "$binaries"/gpu-tests; do
    [ -x "$test" ] || continue
    timeout 120 "$test" --nocapture 2>&1 | tee "$folder/tests.log"
    grep -q '^test result: ok' "$folder/tests.log" || { say "the device's tests failed"; status=1; }
done

timeout "${KVTIDE_DEVICE_SECONDS:-400}" "$program" all --out "$folder" --date "$(date -u +%F)" --commit "$commit" \
    ${KVTIDE_DEVICE_OPTIONS:-} 2>> "$log"
ended=$?
[ "$ended" -eq 0 ] || { say "kvtide-device ended with $ended; report.md has what it found until then"; status=1; }
rm -rf "$folder/cache"
say "$(date -u '+%F %T') UTC, done: $folder/report.md"
exit "$status"
