"""What every benchmark shares: seeded data, machine notes, and the words that bench/report.py looks for.

Convention.  A pytest-benchmark group holds one comparison.  Each of its members calls record_role() once:

    @pytest.mark.benchmark(group="crc32c 16 KiB")
    def bench_crc32c(benchmark):
        record_role(benchmark, "ours", per_round=1000, unit="op", goal={"vs": "peer", "at_most": 0.5})
        benchmark(...)

    role        "ours"; "limit": the physical bound, the same bytes through os.pwrite or a memory stream;
                "peer": another implementation of the same work.
    per_round   what one timed call of the function does: so many operations (unit="op") or bytes (unit="byte") or
                whatever unit names ("record", "batch").  The report divides by it.
    goal        on members of role "ours" only; one dict or a list of them.  Times are per unit of per_round:
                  {"vs": "limit" | "peer", "at_most": R}    our time / theirs <= R  (2x as fast: at_most=0.5)
                  {"at_most_ns": N}                         our time per unit <= N ns
                  {"at_least_per_s": N}                     units per second >= N
                With "vs" the rival is the fastest member of that role in the group; "name": "google-crc32c" beside it
                picks one by the member's label.  "where_limit_reaches": N (units per second) makes a goal count only on
                a machine whose limit gets there.  "text" replaces the words of the report.
    case        optional: compare only with members of the same case, when one group holds several (parametrize).
    label       optional: what the report prints for this member; default is the role, or the peer's name.

Anything else passed to record_role is stored beside them.  Times come from the median; the spread is the
interquartile range over it.  Data is seeded and built outside the timing.  If a kernel or a peer cannot run here, skip
it with a reason: never time another one in its place.
"""

from __future__ import annotations

import os
import platform
import random
from pathlib import Path
from typing import Any

import pytest

ROLES = ("ours", "limit", "peer")


def record_role(benchmark: Any, role: str, **info: Any) -> None:
    """Store the role and its particulars (see the top of this file) in benchmark.extra_info."""
    assert role in ROLES, f"role {role!r} is none of {ROLES}"
    assert info.get("per_round", 0) > 0, "per_round: how many operations or bytes one timed call does"
    assert role == "ours" or "goal" not in info, "a goal belongs to the member of role 'ours'"
    info.setdefault("unit", "op")
    benchmark.extra_info.update(role=role, **info)


@pytest.fixture
def rng() -> random.Random:
    """The same random numbers in every run."""
    return random.Random(20260)


@pytest.fixture(scope="session")
def record_values() -> list[bytes]:
    """4,096 values of 100 bytes, half of each compressible: what the record benchmarks are made of."""
    rng = random.Random(4096)
    words = [rng.randbytes(5) for _ in range(64)]
    return [rng.randbytes(50) + b"".join(rng.choices(words, k=10)) for _ in range(4096)]


@pytest.fixture(scope="session")
def bench_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where benchmarks put their files: BENCH_DIR, or pytest's temporary directory."""
    chosen = os.environ.get("BENCH_DIR")
    return Path(chosen) if chosen else tmp_path_factory.mktemp("bench")


def _first_line(path: str) -> str | None:
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            return file.readline().strip()
    except OSError:
        return None


def _cpu_model() -> str:
    try:
        with open("/proc/cpuinfo", encoding="ascii", errors="replace") as file:
            for line in file:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def machine_notes() -> dict[str, Any]:
    """What a figure depends on besides the code: CPU, how much of it we may use, kernel, Python, load at the start."""
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {
        "cpu": _cpu_model(),
        "cpus": affinity,
        "cgroup_cpu_max": _first_line("/sys/fs/cgroup/cpu.max"),
        "governor": _first_line("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "load_1min": round(os.getloadavg()[0], 2),
    }


def pytest_benchmark_update_machine_info(config: pytest.Config, machine_info: dict[str, Any]) -> None:
    machine_info["kcore"] = machine_notes()
