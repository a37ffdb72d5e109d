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

"$python" -m zipfile -l dist/*.whl >"$work/wheel.txt"
grep -q 'licenses/LICENSE ' "$work/wheel.txt" && grep -q 'licenses/NOTICE ' "$work/wheel.txt" ||
    { echo "the wheel lacks LICENSE or NOTICE"; exit 1; }
if grep '\.pxd ' "$work/wheel.txt"; then echo "the wheel has .pxd files without the headers that they need"; exit 1; fi

"$python" -m venv "$work/venv"
"$work/venv/bin/python" -m pip install -q --disable-pip-version-check --only-binary :all: dist/*.whl
# Only the new environment on the path: no compiler can be found, and the checkout is not importable.
cp ci/wheel_smoke.py ci/wheel_pytest.py "$work"
pytest=$("$python" ci/requirements.py dev | grep '^pytest>')
cd "$work"
env -i PATH="$work/venv/bin" HOME="$work" "$work/venv/bin/python" wheel_smoke.py
# Only now, because the wheel has to work without it.
"$work/venv/bin/python" -m pip install -q --disable-pip-version-check --only-binary :all: "$pytest"
env -i PATH="$work/venv/bin" HOME="$work" "$work/venv/bin/python" -m pytest -q --strict-markers -p no:cacheprovider wheel_pytest.py
