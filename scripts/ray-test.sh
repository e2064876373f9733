#!/bin/sh
# Tests kvtide on a Ray cluster that the tests start on this machine, workers killed among them. Ray and what it needs go into a
# folder of their own (target/ray-test, 5.4 GB); RAY_TEST_DIR is another. What follows is passed on to pytest.
set -eu
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
cargo=${CARGO:-cargo}
folder=${RAY_TEST_DIR:-target/ray-test}
target=${CARGO_TARGET_DIR:-target}
if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
    echo "skipped (ray): the wheel needs Python 3.11 or newer, $("$python" -V) is here; set PYTHON" >&2
    exit 0
fi
mkdir -p "$folder"
if ! cmp -s python/requirements-ray.txt "$folder/requirements"; then
    rm -rf "$folder/tools"
    # Into a folder: no virtual environment is needed, which Debian packs apart.
    "$python" -m pip install --quiet --disable-pip-version-check --target "$folder/tools" -r python/requirements-ray.txt
    cp python/requirements-ray.txt "$folder/requirements"
fi
# Tool and wheel must be of one build. Packing a wheel is `make python-test`'s to check; here its contents will do.
"$cargo" build --locked -p kvtide -p kvtide-python
rm -rf "$folder/site"
mkdir -p "$folder/site"
cp -R python/lib/kvtide "$folder/site/kvtide"
cp "$target/debug/lib_kvtide.so" "$folder/site/kvtide/_kvtide.abi3.so"
here=$(pwd)
case $folder in /*) ;; *) folder=$here/$folder ;; esac
case $target in /*) ;; *) target=$here/$target ;; esac
KVTIDE="$target/debug/kvtide" PYTHONPATH="$folder/site:$folder/tools" "$python" -B -m pytest -p no:cacheprovider -v \
    python/tests/test_ray_work.py python/tests/test_ray.py python/tests/test_ray_python.py "$@"
