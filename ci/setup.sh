#!/bin/sh
# setup.sh VENV: make a virtual environment with the build tools.
# Whatever the machine lacks is named, with the package that brings it.
set -eu
venv=$1

lacks() {
    echo "kcore needs $1, which this machine lacks." >&2
    echo "  Debian, Ubuntu:  apt-get install $2" >&2
    echo "  Fedora, RHEL:    dnf install $3" >&2
    exit 2
}

python=""
for candidate in ${PYTHON:-} python3 python3.14 python3.13 python3.12 python3.11; do
    if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
        python=$candidate
        break
    fi
done
[ -n "$python" ] || lacks "Python 3.11 or newer" "python3" "python3.12"
version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
"$python" -c 'import venv, ensurepip' 2>/dev/null || lacks "Python's venv module" "python$version-venv" "python3-libs"
"${CC:-cc}" --version >/dev/null 2>&1 || lacks "a C compiler" "gcc libc6-dev" "gcc glibc-devel"
include=$("$python" -c 'import sysconfig; print(sysconfig.get_paths()["include"])')
[ -f "$include/Python.h" ] || lacks "Python's header files" "python$version-dev" "python3-devel"

# A virtual environment that no longer runs (its Python is gone) is made anew.
"$venv/bin/python" -c '' 2>/dev/null || {
    rm -rf "$venv"
    echo "making $venv with $python ($version), with the build tools in it"
    "$python" -m venv "$venv"
}
"$venv/bin/python" ci/requirements.py build | xargs -d '\n' "$venv/bin/python" -m pip install -q --disable-pip-version-check
