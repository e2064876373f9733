#!/bin/sh
# Everything there is to find out about a machine's GPU, in one run of at most ten minutes: kernels against their
# references, speeds beside ceilings, a hardware profile with its errors on what was held out, traffic on the device beside the
# model, real blocks under random schedules. Where there is no device, what needs none runs and the rest is reported as skipped.
#
#   scripts/device-check.sh [FOLDER]        FOLDER: where report.md, report.json, profile.toml, timings.json and logs go
#                                           (device-report). Timings that are there already are gone on with.
#
# Needs no Rust toolchain: with `kvtide-device` and the test program of the GPU beside it (`make device-binaries`), from
#   KVTIDE_DEVICE_BINARIES   their folder (target/device-binaries)
# NVRTC and cuBLAS are the machine's own: of PyTorch's wheels, of CUDA's toolkit, or where KVTIDE_CUDA_LIBRARIES says.
#   KVTIDE_DEVICE_OPTIONS    more options, as `kvtide-device help all` lists them
#   KVTIDE_DEVICE_SECONDS    limit of the report, beside that of the tests of 120 s (400)
# Clocks are left alone, and the card is never reset.
set -u
# Where the caller stands, before this script goes to the project's root.
absolute() { case $1 in /*) printf '%s' "$1" ;; *) printf '%s/%s' "$PWD" "$1" ;; esac; }
folder=$(absolute "${1:-device-report}")
binaries=${KVTIDE_DEVICE_BINARIES:+$(absolute "$KVTIDE_DEVICE_BINARIES")}
cd "$(dirname "$0")/.." || exit 2
binaries=${binaries:-$PWD/target/device-binaries}
program=$binaries/kvtide-device
if [ ! -x "$program" ]; then
    echo "$program is not there: make device-binaries builds it" >&2
    exit 2
fi
mkdir -p "$folder" && : > "$folder/log" || { echo "$folder cannot be written" >&2; exit 2; }
scratch=$(mktemp -d) || exit 2
trap 'rm -rf "$scratch"' EXIT
trap 'exit 130' INT TERM

say() { printf '%s\n' "$*" | tee -a "$folder/log"; }

# Of CUDA's libraries one set, under every name they are asked for, before any other the loader knows.
wheels=$(python3 -c 'import os, nvidia; print(os.path.join(list(nvidia.__path__)[0], "cu13", "lib"))' 2> /dev/null)
for place in "${KVTIDE_CUDA_LIBRARIES:-}" "$wheels" \
    /usr/local/cuda/lib64 /usr/local/cuda/targets/x86_64-linux/lib third_party/libtorch/nvidia/cu13/lib; do
    if [ -n "$place" ] && [ -e "$place/libnvrtc.so.13" ]; then
        place=$(cd "$place" && pwd)
        mkdir "$scratch/lib"
        for library in "$place"/libnvrtc*.so* "$place"/libcublas*.so*; do
            [ -e "$library" ] && ln -s "$library" "$scratch/lib/"
        done
        for name in nvrtc cublas cublasLt; do
            [ -e "$place/lib$name.so.13" ] && [ ! -e "$scratch/lib/lib$name.so" ] \
                && ln -s "$place/lib$name.so.13" "$scratch/lib/lib$name.so"
        done
        LD_LIBRARY_PATH=$scratch/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
        KVTIDE_CUDA_LIBRARIES=$scratch/lib
        export LD_LIBRARY_PATH KVTIDE_CUDA_LIBRARIES
        say "CUDA's libraries from $place"
        break
    fi
done
# Compiled kernels stay with this run.
export KVTIDE_CACHE="$scratch/cache"
commit=${KVTIDE_COMMIT:-$(cat "$binaries/commit" 2> /dev/null || echo unknown)}

say "$(date -u '+%F %T') UTC, commit $commit"
if command -v nvidia-smi > /dev/null; then
    nvidia-smi --query-gpu=name,driver_version,memory.total,clocks.sm,clocks.mem,temperature.gpu,power.draw --format=csv 2>&1 \
        | tee -a "$folder/log"
fi
"$program" info 2>&1 | tee -a "$folder/log"

# The tests that need a device, each in a process of its own: a device lost in one is not lost to the next. Without a device
# they say so.
status=0
tests=$binaries/gpu-tests
: > "$folder/tests.log"
if [ -x "$tests" ]; then
    for name in $("$tests" --list 2> /dev/null | sed -n 's/: test$//p'); do
        timeout "${KVTIDE_TEST_SECONDS:-60}" "$tests" --exact "$name" --nocapture >> "$folder/tests.log" 2>&1 \
            || { say "FAILED: $name (tests.log)"; status=1; }
    done
    grep -E '^skipped: |^test .*(ok|FAILED)$' "$folder/tests.log"
else
    say "$tests is not there: make device-binaries builds it"
    status=1
fi

# shellcheck disable=SC2086  # several options
timeout "${KVTIDE_DEVICE_SECONDS:-400}" "$program" all --out "$folder" --date "$(date -u +%F)" --commit "$commit" \
    ${KVTIDE_DEVICE_OPTIONS:-} 2>> "$folder/log"
ended=$?
[ "$ended" -eq 0 ] || { say "kvtide-device ended with $ended; report.md has what it found until then"; status=1; }
rm -f "$folder"/*.part "$folder"/*.tmp
say "$(date -u '+%F %T') UTC, done: $folder/report.md"
exit "$status"
