"""CRC-32C from Python: what one call costs for a small input, and what a byte costs in a large one."""

import random

import google_crc32c
import pytest

from bench.conftest import record_role
from kcore.record.crc32c import crc32c, crc32c_with, kernels

CALLS = 1000
SIZES = {"64 B": 64, "1 KiB": 1024, "16 KiB": 16 * 1024, "1 MiB": 1024 * 1024}


def call_many(function, data, calls):
    for _ in range(calls):
        function(data)


def groups():
    for name, size in SIZES.items():
        yield pytest.param(size, id=name, marks=pytest.mark.benchmark(group=f"crc32c {name}"))


def run(benchmark, role, function, size, **info):
    data = random.Random(size).randbytes(size)
    calls = CALLS if size < 100_000 else 10
    record_role(benchmark, role, per_round=calls * size, unit="byte", **info)
    benchmark(call_many, function, data, calls)


@pytest.mark.parametrize("size", groups())
def bench_crc32c(benchmark, size):
    run(benchmark, "ours", crc32c, size, goal={"vs": "peer", "name": "google-crc32c", "at_most": 0.5})


@pytest.mark.parametrize("size", groups())
def bench_crc32c_by_google(benchmark, size):
    run(benchmark, "peer", google_crc32c.value, size, label="google-crc32c")


@pytest.mark.parametrize("kernel", ["avx512", "sse42", "armv8", "table"])
@pytest.mark.parametrize("size", groups())
def bench_crc32c_by_kernel(benchmark, size, kernel):
    if kernel not in kernels():
        pytest.skip(f"this CPU cannot run the {kernel} kernel")
    run(benchmark, "peer", lambda data: crc32c_with(kernel, data), size, label=f"kernel {kernel}")
