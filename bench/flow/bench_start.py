"""From nothing to a broker that answers: what a test suite or a script pays before its first record.

Every round is a fresh process.  What is timed is told by the process itself, so the interpreter's own start is left
out; the limit is an interpreter that imports what every network program needs.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bench.conftest import record_role

ROOT = Path(__file__).resolve().parents[2]
ROUNDS = 15

IMPORT = "import kcore"
IMPORT_ALL = "import kcore; kcore.Broker; kcore.open_log; kcore.RecordBatchBuilder"
STANDARD = "import socket, selectors, threading, logging, struct, sqlite3, json"
BROKER_READY = "with kcore.Broker() as broker: broker.bootstrap_servers; end = clock()"

# An installation has its .pyc files; where this variable is set, every start would compile all modules anew.
ENVIRONMENT = os.environ | {"PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": ""}


def seconds_inside(statement: str, before: str = "", clock: str = "perf_counter") -> float:
    """How long a statement takes in a fresh interpreter; it may set `end` itself."""
    code = (
        f"from time import {clock} as clock\n{before}\nstart = clock()\nend = None\n{statement}\n"
        "print((end or clock()) - start)"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=ENVIRONMENT, check=True, timeout=60
    )
    return float(result.stdout.splitlines()[-1])


def cpu_seconds_inside(statement: str) -> float:
    """The same for what waits for nothing: other work on the machine does not count."""
    return seconds_inside(statement, clock="process_time")


def in_fresh_processes(
    benchmark: Any, monkeypatch: pytest.MonkeyPatch, measure: Callable[[], float], rounds: int = ROUNDS
) -> None:
    """Let pytest-benchmark record what measure() returns, instead of how long it took."""
    measure()  # once for the page cache and the .pyc files
    taken = 0.0

    def once() -> None:
        nonlocal taken
        taken += measure()

    # Time, as this benchmark sees it, passes only inside measure().
    monkeypatch.setattr(benchmark, "_timer", lambda: taken)
    benchmark.pedantic(once, rounds=rounds, iterations=1)


@pytest.mark.benchmark(group="import kcore")
def bench_import(benchmark, monkeypatch):
    record_role(benchmark, "ours", per_round=1, goal={"at_most_ns": 150e6})
    in_fresh_processes(benchmark, monkeypatch, lambda: cpu_seconds_inside(IMPORT))


@pytest.mark.benchmark(group="import of all public names, broker included")
def bench_import_of_all_public_names(benchmark, monkeypatch):
    record_role(benchmark, "ours", per_round=1, goal={"at_most_ns": 150e6})
    in_fresh_processes(benchmark, monkeypatch, lambda: cpu_seconds_inside(IMPORT_ALL))


@pytest.mark.benchmark(group="import of all public names, broker included")
def bench_import_of_the_standard_modules_a_server_needs(benchmark, monkeypatch):
    record_role(benchmark, "limit", per_round=1, label="socket, logging, sqlite3, ...")
    in_fresh_processes(benchmark, monkeypatch, lambda: cpu_seconds_inside(STANDARD))


@pytest.mark.benchmark(group="Broker() ready after import")
def bench_broker_ready(benchmark, monkeypatch):
    record_role(benchmark, "ours", per_round=1, goal={"at_most_ns": 20e6})
    in_fresh_processes(benchmark, monkeypatch, lambda: seconds_inside(BROKER_READY, before=IMPORT_ALL))


def serve_until_answer(port: int, data: Path) -> float:
    """Seconds from starting `kcore serve` to the answer of its first ApiVersions request."""
    import socket
    import struct

    request = struct.pack(">ihhih", 10, 18, 0, 1, -1)
    command = [sys.executable, "-m", "kcore.tools.main", "serve", "--data", str(data), "--port", str(port)]
    start = time.perf_counter()
    process = subprocess.Popen(command, env=ENVIRONMENT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    try:
        while True:
            try:
                with socket.create_connection(("127.0.0.1", port), 1) as connection:
                    connection.sendall(request)
                    assert connection.recv(4)
                    return time.perf_counter() - start
            except OSError:
                assert process.poll() is None, process.stderr.read().decode()
                assert time.perf_counter() - start < 30
                time.sleep(0.001)
    finally:
        process.terminate()
        process.wait(30)
        process.stderr.close()


@pytest.mark.benchmark(group="kcore serve to its first answer")
def bench_serve_to_first_answer(benchmark, monkeypatch, tmp_path):
    import socket

    record_role(benchmark, "ours", per_round=1, goal={"at_most_ns": 250e6})
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    in_fresh_processes(benchmark, monkeypatch, lambda: serve_until_answer(port, tmp_path))
