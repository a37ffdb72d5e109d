#!/usr/bin/env bash
# Install the file $WHEEL where there is no compiler, and try it, its types, and its plugin of pytest.
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$python" -m zipfile -l "$WHEEL" >"$work/wheel.txt"
grep -q 'licenses/LICENSE ' "$work/wheel.txt" && grep -q 'licenses/NOTICE ' "$work/wheel.txt" ||
    { echo "the wheel lacks LICENSE or NOTICE"; exit 1; }
if grep '\.pxd ' "$work/wheel.txt"; then echo "the wheel has .pxd files without the headers that they need"; exit 1; fi

"$python" -m venv "$work/venv"
"$work/venv/bin/python" -m pip install -q --disable-pip-version-check --only-binary :all: "$WHEEL"
# Only the new environment on the path: no compiler can be found, and the checkout is not importable.
cp ci/wheel_smoke.py ci/wheel_pytest.py ci/wheel_types.py "$work"
pytest=$("$python" ci/requirements.py dev | grep '^pytest>')
mypy=$("$python" ci/requirements.py dev | grep '^mypy>')
cd "$work"
env -i PATH="$work/venv/bin" HOME="$work" "$work/venv/bin/python" wheel_smoke.py
# Only now, because the wheel has to work without them.
"$work/venv/bin/python" -m pip install -q --disable-pip-version-check --only-binary :all: "$pytest" "$mypy"
env -i PATH="$work/venv/bin" HOME="$work" "$work/venv/bin/python" -m pytest -q --strict-markers -p no:cacheprovider wheel_pytest.py
env -i PATH="$work/venv/bin" HOME="$work" "$work/venv/bin/python" -m mypy --strict wheel_types.py
