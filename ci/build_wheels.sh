#!/usr/bin/env bash
# Build sdist and wheel into dist/, install the wheel where there is no compiler, and try it.
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
rm -rf dist
"$python" -m pip install -q --disable-pip-version-check build
"$python" -m build --outdir dist . >"$work/build.log" 2>&1 || { cat "$work/build.log"; exit 1; }
ls -l dist
tar tzf dist/*.tar.gz | grep 'kcore/record/record_batch\.c$' || { echo "the sdist lacks the generated C"; exit 1; }

"$python" -m venv "$work/venv"
"$work/venv/bin/python" -m pip install -q --disable-pip-version-check --only-binary :all: dist/*.whl
# Only the new environment on the path: no compiler can be found, and the checkout is not importable.
cp ci/wheel_smoke.py "$work"
cd "$work"
env -i PATH="$work/venv/bin" HOME="$work" "$work/venv/bin/python" wheel_smoke.py
