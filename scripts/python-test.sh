#!/bin/sh
# Builds the Python wheel, installs it into a folder of its own (target/python-test) and runs its tests.
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
if ! cmp -s python/requirements-test.txt "$folder/requirements"; then
    rm -rf "$folder/tools"
    pip --target "$folder/tools" -r python/requirements-test.txt
    cp python/requirements-test.txt "$folder/requirements"
fi
rm -rf "$folder/wheels" "$folder/site"
"$folder/tools/bin/maturin" build --quiet --release --interpreter "$python" --manifest-path python/Cargo.toml --out "$folder/wheels"
pip --target "$folder/site" --no-index --no-deps "$folder"/wheels/*.whl
KVTIDE_WHEELS="$folder/wheels" PYTHONPATH="$folder/site:$folder/tools" "$python" -B -m pytest -p no:cacheprovider python "$@"
