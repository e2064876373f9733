#!/bin/sh
# Wheels that others can install: Linux, glibc 2.28 or newer, x86-64 and aarch64, Python 3.11 and newer. `make wheels`.
#   scripts/wheels.sh [FOLDER]      ARCHITECTURES="x86_64" for one of them
# A processor whose Rust target is not installed is left out, and named; exit code 1 if none could be built.
set -eu
cd "$(dirname "$0")/.."
folder=${1:-target/wheels}
python=${PYTHON:-python3}
mkdir -p target/wheel-tools
# By its whole path: the compilers of C start in folders of their own, and look for zig by it.
tools=$(cd target/wheel-tools && pwd)
if ! cmp -s python/requirements-wheels.txt "$tools/requirements"; then
    rm -rf "$tools/lib"
    "$python" -m pip install --quiet --disable-pip-version-check --target "$tools/lib" -r python/requirements-wheels.txt
    cp python/requirements-wheels.txt "$tools/requirements"
fi
made=0 left=
for architecture in ${ARCHITECTURES:-x86_64 aarch64}; do
    target=$architecture-unknown-linux-gnu
    if [ ! -d "$(rustc --print sysroot)/lib/rustlib/$target/lib" ]; then
        left="$left $target"
        continue
    fi
    # The tools lie in a folder, which both maturin and cargo-zigbuild's linker find zig by.
    PYTHONPATH="$tools/lib" "$tools/lib/bin/maturin" build --quiet --release --locked --zig --compatibility manylinux_2_28 \
        --target "$target" --manifest-path python/Cargo.toml --out "$folder"
    made=$((made + 1))
done
ls -l "$folder"
for target in $left; do
    echo "left out: ${target%%-*}, whose Rust target is not installed (rustup target add $target); there is no wheel for it in $folder" >&2
done
[ "$made" -gt 0 ]
