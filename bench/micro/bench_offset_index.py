"""Lookups in an index of 262,144 entries: one GiB of log at 4 KiB an entry."""

import bisect

import pytest

from bench.conftest import record_role
from kcore.log.offset_index import OffsetIndex

ENTRIES = 262_144
LOOKUPS = 10_000


@pytest.fixture(scope="module")
def full_index(bench_dir):
    path = bench_dir / "bench.index"
    index = OffsetIndex(str(path), 0)
    for n in range(ENTRIES):
        index.append(4 * n + 3, 4096 * n)
    yield index
    index.close()
    path.unlink()


@pytest.fixture(scope="module")
def full_list():
    return [4 * n + 3 for n in range(ENTRIES)]


def targets_of(span, rng):
    if span == "one":
        return [4 * ENTRIES - 200] * LOOKUPS
    if span == "tail":
        return [rng.randrange(4 * (ENTRIES - 1000), 4 * ENTRIES) for _ in range(LOOKUPS)]
    return [rng.randrange(4 * ENTRIES) for _ in range(LOOKUPS)]


def lookup_all(lookup, targets):
    for target in targets:
        lookup(target)


def spans():
    for span in ("one", "tail", "anywhere"):
        yield pytest.param(span, marks=pytest.mark.benchmark(group=f"offset index lookup, {span}"), id=span)


@pytest.mark.parametrize("span", spans())
def bench_lookup_in_full_index(benchmark, full_index, rng, span):
    goal = {"at_most_ns": 400 if span == "anywhere" else 90}
    record_role(benchmark, "ours", per_round=LOOKUPS, goal=goal, entries=ENTRIES)
    benchmark(lookup_all, full_index.lookup, targets_of(span, rng))


@pytest.mark.parametrize("span", spans())
def bench_bisect_in_full_list(benchmark, full_list, rng, span):
    """The same search in a list of Python integers: what a lookup from Python can hope for."""
    record_role(benchmark, "limit", per_round=LOOKUPS, label="bisect in a list")
    benchmark(lookup_all, lambda target: bisect.bisect_right(full_list, target), targets_of(span, rng))


@pytest.mark.benchmark(group="offset index append")
def bench_append(benchmark, bench_dir):
    path = str(bench_dir / "append.index")

    def fresh():
        index = OffsetIndex(path, 0)
        index.truncate()
        index.append(1, 0)
        return (index,), {}

    def append_all(index):
        append = index.append
        for n in range(2, LOOKUPS):
            append(n, n)

    record_role(benchmark, "ours", per_round=LOOKUPS, goal={"at_most_ns": 200})
    benchmark.pedantic(append_all, setup=fresh, rounds=20)
