#!/usr/bin/env bash
# Builds the extension modules under AddressSanitizer and UndefinedBehaviorSanitizer, in a copy of the tree, and runs
# the tests that feed them broken bytes: records, indexes, segments, frames, messages, a hostile client.
#   PYTHON  with the dev dependencies (python3)      CC  the compiler (cc)      PYTEST_JOBS  processes of tests (2)
set -euo pipefail
cd "$(dirname "$0")/.."
python=$(realpath -s "$(command -v "${PYTHON:-python3}")")
cc=${CC:-cc}
copy=build/sanitized
mkdir -p "$copy"
# Sources only; object files of an earlier run are kept, so that only what changed is built again.
tar cf - --exclude='*.so' --exclude='kcore/**/*.c' csrc kcore tests setup.py pyproject.toml README.md LICENSE NOTICE |
    tar xf - -C "$copy"
cd "$copy"
KCORE_SANITIZE=address,undefined "$python" setup.py -q build_clib build_ext --inplace

# The interpreter itself is not instrumented: it would be blamed for what it never frees, and its allocator would hide
# overruns of small objects.
export LD_PRELOAD="$("$cc" -print-file-name=libasan.so) $("$cc" -print-file-name=libubsan.so)"
export ASAN_OPTIONS=detect_leaks=0 PYTHONMALLOC=malloc PYTHONPATH=$PWD
# Whole logs driven at random, and one test of large segments, call the same native code as the tests of its parts, a hundred times as long.
exec "$python" -m pytest -n "${PYTEST_JOBS:-2}" -p no:cacheprovider --timeout=600 -k "not V22_12" --ignore-glob="*_model.py" --ignore-glob="*/test_log_cleaner*.py" \
    --ignore=tests/unit/log/test_producers_after_compaction.py --ignore=tests/unit/log/test_log_manager.py \
    --ignore=tests/unit/log/test_dataframes_page.py \
    tests/unit/common tests/unit/record tests/unit/log tests/unit/bulk tests/unit/network \
    tests/unit/protocol tests/fuzz
