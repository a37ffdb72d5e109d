#!/usr/bin/env bash
# Build sdist and wheel into dist/, install the wheel where there is no compiler, and try it, and its plugin of pytest.
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
rm -rf dist
# The environment has what pyproject.toml builds with: no second one is made.
"$python" -m pip install -q --disable-pip-version-check build
"$python" -m build --no-isolation --outdir dist . >"$work/build.log" || { cat "$work/build.log"; exit 1; }
ls -l dist
tar tzf dist/*.tar.gz | grep 'kcore/record/record_batch\.c$' || { echo "the sdist lacks the generated C"; exit 1; }

WHEEL=$(ls "$PWD"/dist/*.whl) PYTHON=$python bash ci/try_wheel.sh
