#!/usr/bin/env bash
# Builds csrc and each fuzz target under AddressSanitizer and UndefinedBehaviorSanitizer, and lets the targets run.
#   FUZZ_SECONDS  for each target (20)      FUZZ_SEED  of the mutations (the day's number)      CC  the compiler (cc)
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=${FUZZ_SECONDS:-20}
seed=${FUZZ_SEED:-$(date +%Y%m%d)}
cc=${CC:-cc}
out=build/fuzz
mkdir -p "$out"

flags=(-std=c11 -O1 -g -Wall -Wextra -Wno-unused-function -D_GNU_SOURCE -Icsrc -fno-omit-frame-pointer
       -fsanitize=address,undefined -fno-sanitize-recover=all)
if ! echo 'int main(void) { return 0; }' | "$cc" "${flags[@]}" -x c - -o "$out/probe" 2>"$out/probe.log"; then
    cat "$out/probe.log" >&2
    echo "ci/sanitize.sh: $cc cannot link the sanitizers; install libasan and libubsan (they come with gcc)" >&2
    exit 2
fi

objects=()
for source in csrc/*.c csrc/fuzz/driver.c; do
    object=$out/$(basename "${source%.c}").o
    "$cc" "${flags[@]}" -c "$source" -o "$object"
    objects+=("$object")
done
for target in csrc/fuzz/fuzz_*.c; do
    name=$(basename "${target%.c}")
    pattern=$(sed -n '1s/.*seeds: *\([^ ]*\).*/\1/p' "$target")
    mapfile -t seeds < <(find tests/golden -name "$pattern" -type f -size +0 | LC_ALL=C sort)
    if [ ${#seeds[@]} -eq 0 ]; then
        echo "ci/sanitize.sh: $target: no golden file matches '$pattern'" >&2
        exit 2
    fi
    "$cc" "${flags[@]}" "$target" "${objects[@]}" -o "$out/$name"
    echo "$name: $seconds s, seed $seed"
    "$out/$name" "$seconds" "$seed" "${seeds[@]}"
done
