#!/bin/sh
# Packs the Python wheel, installs it into a folder of its own (target/python-test) and runs its tests.
#
# PYTHON_TEST_LIBRARY names the library, if it is built already, as `make test` has done; otherwise cargo builds it in the profile of
# tests, which needs no libtorch.
set -eu
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
folder=${PYTHON_TEST_DIR:-target/python-test}
if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
    echo "skipped (pytest): the wheel needs Python 3.11 or newer, $("$python" -V) is here; set PYTHON" >&2
    exit 0
fi
# Into folders: no virtual environment is needed, which Debian packs apart.
pip() { "$python" -m pip install --quiet --disable-pip-version-check --upgrade "$@"; }
mkdir -p "$folder"
folder=$(cd "$folder" && pwd)
if ! cmp -s python/requirements-test.txt "$folder/requirements"; then
    rm -rf "$folder/tools"
    pip --target "$folder/tools" -r python/requirements-test.txt
    cp python/requirements-test.txt "$folder/requirements"
fi
library=${PYTHON_TEST_LIBRARY:-}
# The tool of the same build, which answers in the command line's words what the wheel answers in Python's.
if [ -n "$library" ] && [ -x "$(dirname "$library")/../kvtide" ]; then
    KVTIDE_TOOL=$(cd "$(dirname "$library")/.." && pwd)/kvtide
    export KVTIDE_TOOL
fi
if [ -z "$library" ]; then
    cargo build --quiet --locked -p kvtide-python
    library=${CARGO_TARGET_DIR:-target}/debug/lib_kvtide.so
fi
rm -rf "$folder/wheels" "$folder/info" "$folder/site"
mkdir "$folder/info"
(cd python && "$folder/tools/bin/maturin" pep517 write-dist-info --interpreter "$python" --metadata-directory "$folder/info" > "$folder/log" 2>&1) \
    || { cat "$folder/log" >&2; exit 1; }
"$python" -B python/pack.py "$library" "$folder/info" "$folder/wheels"
pip --target "$folder/site" --no-index --no-deps "$folder"/wheels/*.whl
KVTIDE_WHEELS="$folder/wheels" PYTHONPATH="$folder/site:$folder/tools" "$python" -B -m pytest -p no:cacheprovider python "$@"
