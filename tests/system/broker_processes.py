"""BrokerProcesses: three `kcore serve` processes with one store, which can be killed, paused and started again.

The stores are processes too, or a file that can be locked: what a test does to them is in `outages`.
"""

from __future__ import annotations

import re
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from kcore.metadata import znodes
from kcore.metadata.open_store import open_store
from kcore.metadata.store import SessionExpired, StoreError
from tests import paused_process
from tests.zookeeper_server import ZooKeeperServer, free_port

DEADLINE_S = 120
BROKERS = (0, 1, 2)
SETTINGS = {
    "default.replication.factor": "3",
    "offsets.topic.replication.factor": "3",
    "offsets.topic.num.partitions": "1",
    "controlled.shutdown.retry.backoff.ms": "200",
    "log.retention.ms": "-1",
}
#: Status of `kcore serve` where the store cannot be reached, or still has the broker's last session.
CANNOT_START = 2
_TRACEBACK = re.compile(r"^Traceback \(most recent call last\):\n(?:[ \t].*\n|\n)*.*$", re.MULTILINE)


class BrokenCluster(AssertionError):
    """Something that must never happen, has."""


def await_true(condition: Callable[[], object], what: str | Callable[[], str], pause_s: float = 0.05) -> None:
    """Raises BrokenCluster with `what` if the condition does not come true."""
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        if time.monotonic() > deadline:
            raise BrokenCluster(f"after {DEADLINE_S} s: {what if isinstance(what, str) else what()}")
        time.sleep(pause_s)


class SqliteFile:
    """A store in a file.  Its outage is a lock that keeps everybody from writing."""

    outages = ("lock store",)

    def __init__(self, directory: Path) -> None:
        self._path = directory / "cluster.db"
        self.address = f"sqlite:{self._path}"
        self._lock: sqlite3.Connection | None = None

    def start(self) -> None:
        pass  # the brokers make the file

    def begin(self, outage: str) -> None:
        lock = sqlite3.connect(self._path, timeout=5, isolation_level=None)
        try:
            lock.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError:
            lock.close()  # a broker that stands still holds the lock itself
        else:
            self._lock = lock

    def end(self) -> None:
        if self._lock is not None:
            self._lock.rollback()
            self._lock.close()
            self._lock = None

    def close(self) -> None:
        self.end()

    def log(self) -> str:
        return ""


class ZooKeeperProcess:
    """A real server.  It is killed and started again on its data, or stands still for a while."""

    outages = ("kill store", "kill store", "pause store")

    def __init__(self, directory: Path) -> None:
        self._directory = directory / "zookeeper"
        self._server = ZooKeeperServer(self._directory)
        self.address = self._server.address
        self._outage: str | None = None

    def start(self) -> None:
        self._server.start()

    def begin(self, outage: str) -> None:
        self._outage = outage
        if outage == "kill store":
            self._server.stop()
        else:
            self._server.pause()

    def end(self) -> None:
        if self._outage == "kill store":
            self._server.start()
        elif self._outage == "pause store":
            self._server.resume()
        self._outage = None

    def close(self) -> None:
        self._server.stop()

    def log(self) -> str:
        return (self._directory / "server.log").read_text(errors="replace")


STORES: dict[str, type[SqliteFile] | type[ZooKeeperProcess]] = {"sqlite": SqliteFile, "zookeeper": ZooKeeperProcess}


class BrokerProcesses:
    """Brokers 0, 1, 2; each keeps its port and its directory.  Not thread-safe."""

    def __init__(self, directory: Path, store: str = "sqlite", *, topic: str, partitions: int, session_ms: int) -> None:
        self.directory = directory
        self.session_ms = session_ms
        #: Of single brokers, besides those of all.
        self.settings: dict[int, dict[str, str]] = {number: {} for number in BROKERS}
        self.running: dict[int, subprocess.Popen[bytes]] = {}
        self.paused: set[int] = set()
        self._starting: set[int] = set()
        #: (seconds since the beginning, what happened).
        self.timeline: list[tuple[float, str]] = []
        self.on_event: Callable[[float, str], None] = lambda at, event: None
        self.store_process = STORES[store](directory)
        self._store = None
        self._topic, self._partitions = topic, partitions
        self._ports = {number: free_port() for number in BROKERS}
        self._begin = time.monotonic()

    @property
    def bootstrap_servers(self) -> str:
        return ",".join(f"127.0.0.1:{port}" for port in self._ports.values())

    def note(self, event: str) -> None:
        self.timeline.append((time.monotonic() - self._begin, event))
        self.on_event(*self.timeline[-1])

    # -- processes --------------------------------------------------------------------------------------

    def start_all(self) -> None:
        self.store_process.start()
        self._store = open_store(self.store_process.address, session_timeout_ms=60_000)
        for number in BROKERS:
            self.start(number)
        for number in BROKERS:
            self.await_serving(number)

    def start(self, number: int) -> None:
        """Returns at once; await_serving() waits."""
        settings = SETTINGS | {"zookeeper.session.timeout.ms": str(self.session_ms)} | self.settings[number]
        command = [sys.executable, "-m", "kcore.tools.main", "serve", "--id", str(number)]
        command += ["--store", self.store_process.address, "--data", str(self.data_dir(number))]
        command += ["--port", str(self._ports[number])]
        for name, value in settings.items():
            command += ["-o", f"{name}={value}"]
        self.note(f"start {number}")
        self._starting.add(number)
        with open(self._file(number, "err"), "ab") as log, open(self._file(number, "out"), "wb") as out:
            self.running[number] = subprocess.Popen(command, stdout=out, stderr=log)

    def is_serving(self, number: int) -> bool:
        """Raises BrokenCluster if it has ended, unless for want of the store: then it is started again."""
        status = self.running[number].poll()
        if status == CANNOT_START:
            self.note(f"{number} cannot start")
            self.start(number)
        elif status is not None:
            raise BrokenCluster(f"broker {number} has ended by itself, with status {status}")
        return b"kcore: serving" in self._file(number, "out").read_bytes()

    def await_serving(self, number: int) -> None:
        await_true(lambda: self.is_serving(number), f"broker {number} does not serve", pause_s=0.2)
        if number in self._starting:
            self._starting.remove(number)
            self.note(f"{number} serves")

    def kill(self, number: int) -> None:
        self.note(f"kill {number}")
        self._kill(number)

    def _kill(self, number: int) -> None:
        self.paused.discard(number)
        process = self.running.pop(number)
        process.kill()
        process.wait()

    def pause(self, number: int) -> None:
        self.note(f"pause {number}")
        self.paused.add(number)
        paused_process.pause(self.running[number])

    def resume(self, number: int) -> None:
        self.note(f"resume {number}")
        self.paused.discard(number)
        paused_process.resume(self.running[number])

    def terminate(self, number: int) -> None:
        """A clean stop, with leaders that move away if they can."""
        self.note(f"terminate {number}")
        self.running[number].send_signal(signal.SIGTERM)
        self.await_end(number)

    def await_end(self, number: int) -> None:
        process = self.running[number]
        try:
            status = process.wait(DEADLINE_S)
        except subprocess.TimeoutExpired:
            raise BrokenCluster(f"broker {number} does not stop") from None
        if status:
            raise BrokenCluster(f"broker {number} stops with status {status}")
        del self.running[number]

    def stop_all(self) -> None:
        self.note("terminate all")
        for process in self.running.values():
            process.send_signal(signal.SIGTERM)
        for number in list(self.running):
            self.await_end(number)

    def close(self) -> None:
        for number in list(self.running):
            self._kill(number)
        if self._store is not None:
            self._store.close()
        self.store_process.close()

    # -- what the store says; None while it is away -----------------------------------------------------

    def state(self, partition: int, topic: str | None = None) -> znodes.PartitionStateZNode | None:
        data = self._get(znodes.partition_state(topic or self._topic, partition))
        return znodes.PartitionStateZNode.decode(data) if data is not None else None

    def states(self) -> list[znodes.PartitionStateZNode | None]:
        return [self.state(number) for number in range(self._partitions)]

    def controller(self) -> int | None:
        data = self._get(znodes.CONTROLLER)
        return znodes.ControllerZNode.decode(data).broker_id if data is not None else None

    def depose_controller(self) -> None:
        try:
            self._store.delete(znodes.CONTROLLER)
        except StoreError:
            pass

    def _get(self, path: str) -> bytes | None:
        try:
            node = self._store.get(path)
        except SessionExpired:
            try:
                self._store.new_session()
            except StoreError:
                pass
            return None
        except StoreError:
            return None
        return node.data if node is not None else None

    def await_whole_isr(self) -> None:
        def is_whole() -> bool:
            return all(state is not None and len(state.isr) == len(BROKERS) for state in self.states())

        await_true(is_whole, "the ISR is not whole")
        self.note("the ISR is whole")

    # -- files ------------------------------------------------------------------------------------------

    def data_dir(self, number: int) -> Path:
        return self.directory / str(number)

    def partition_dirs(self, topic: str, partition: int) -> list[Path]:
        return [self.data_dir(number) / f"{topic}-{partition}" for number in BROKERS]

    def _file(self, number: int, kind: str) -> Path:
        return self.directory / f"{number}.{kind}"

    def log_of(self, number: int) -> str:
        path = self._file(number, "err")
        return path.read_text(errors="replace") if path.exists() else ""

    def tracebacks(self) -> list[str]:
        """Of exceptions in the brokers' logs: what threads must not die of, and handlers must not meet."""
        return [f"broker {number}: {found}" for number in BROKERS for found in _TRACEBACK.findall(self.log_of(number))]

    def report(self) -> str:
        """What a failed run prints: the last events, the states in the store, what each broker explains and logs."""
        self.store_process.end()
        lines = ["", *(f"{at:.1f} {event}" for at, event in self.timeline[-60:])]
        lines.append(f"{time.monotonic() - self._begin:.1f} now; controller {self.controller()}")
        for number in sorted(self.paused):
            self.resume(number)
        for partition in range(self._partitions):
            lines.append(f"{self._topic}-{partition}: {self.state(partition)}")
            for number in self.running:
                lines.append(f"-- broker {number}: {self._explanation(number, partition)}")
        for number in BROKERS:
            lines += [f"-- log of broker {number}", self.log_of(number)[-5000:]]
        return "\n".join([*lines, "-- log of the store", self.store_process.log()[-2000:]])

    def _explanation(self, number: int, partition: int) -> str:
        command = [sys.executable, "-m", "kcore.tools.main", "explain", "isr", self._topic, str(partition)]
        command += ["--data", str(self.data_dir(number))]
        try:
            explained = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
        except subprocess.TimeoutExpired:
            return "no answer"
        return f"{explained.stdout}{explained.stderr[-1000:]}"
