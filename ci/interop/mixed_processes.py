"""MixedProcesses: two Java brokers of Kafka 3.9 and one of kcore, with what a chain calls of BrokerProcesses.

They share a ZooKeeper.  Leaders of each kind get markers from coordinators of the other, and answer and ask whether a
partition is in a transaction.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path

from ci.interop.mixed_cluster import JAVA_BROKERS, KCORE_BROKER, Mixed
from tests.system.broker_processes import await_true

MIXED_BROKERS = (*JAVA_BROKERS, KCORE_BROKER)
#: What a round may kill besides that of any chain -> one of these brokers.
KINDS = {"the kcore broker": (KCORE_BROKER,), "a Java broker": JAVA_BROKERS}


class MixedProcesses(Mixed):
    def __init__(self, jars: str, directory: Path, settings: Mapping[str, str]) -> None:
        super().__init__(jars, directory, settings)
        self.timeline: list[tuple[float, str]] = []
        self.on_event: Callable[[float, str], None] = lambda at, event: None
        self._begin = time.monotonic()

    @property
    def running(self) -> list[int]:
        return [broker for broker in MIXED_BROKERS if broker in self._processes]

    def note(self, event: str) -> None:
        self.timeline.append((time.monotonic() - self._begin, event))
        self.on_event(*self.timeline[-1])

    def start_all(self) -> None:
        self.start_zookeeper()
        self.connect()
        for broker in MIXED_BROKERS:
            self.launch(broker)
        for broker in MIXED_BROKERS:
            self.await_serving(broker)

    def start(self, broker: int) -> None:
        """Once its session has ended: a Java broker does not wait for that.  await_serving() waits until it serves."""
        await_true(lambda: broker not in self.registered(), f"the session of broker {broker} does not end")
        self.note(f"start {broker}")
        self.launch(broker)

    def await_serving(self, broker: int) -> None:
        self.wait_until_it_answers(broker)
        self.note(f"{broker} serves")

    def kill(self, broker: object) -> None:
        self.note(f"kill {broker}")
        super().kill(broker)

    def close(self) -> None:
        self.disconnect()
        super().close()

    def partition_dirs(self, topic: str, partition: int) -> list[Path]:
        return [self.data_dir(broker) / f"{topic}-{partition}" for broker in MIXED_BROKERS]

    def tracebacks(self) -> list[str]:
        output = (self.directory / f"{KCORE_BROKER}.out").read_text()
        return [output[at:][:2000]] if (at := output.find("Traceback (most recent")) >= 0 else []

    def report(self) -> str:
        lines = [f"{at:.1f} {event}" for at, event in self.timeline]
        return "\n".join([*lines, *(f"-- {path.name}\n{path.read_text()[-4000:]}" for path in self._outputs())])

    def _outputs(self) -> list[Path]:
        return sorted(self.directory.glob("*.out"))
