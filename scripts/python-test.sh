#!/bin/sh
# Builds the Python wheel, installs it into an environment of its own (target/python-test) and runs its tests.
set -eu
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
folder=${PYTHON_TEST_DIR:-target/python-test}
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11) and "the wheel needs Python 3.11 or newer; set PYTHON")'
mkdir -p "$folder"
if ! cmp -s python/requirements-test.txt "$folder/requirements"; then
    rm -rf "$folder/venv"
    "$python" -m venv "$folder/venv"
    "$folder/venv/bin/pip" install --quiet --disable-pip-version-check -r python/requirements-test.txt
    cp python/requirements-test.txt "$folder/requirements"
fi
rm -rf "$folder/wheels"
"$folder/venv/bin/maturin" build --quiet --release --manifest-path python/Cargo.toml --out "$folder/wheels"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check --no-index --force-reinstall "$folder"/wheels/*.whl
"$folder/venv/bin/python" -B -m pytest -p no:cacheprovider python "$@"
