"""mixed_copier_chain.py [--minutes M] [--seed S]: copier_chain.py over two Java brokers of Kafka 3.9 and one of kcore.

They share a ZooKeeper.  Leaders of each kind get markers from coordinators of the other, and answer and ask whether a
partition is in a transaction.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from ci.interop import copier_chain  # noqa: E402
from ci.interop.mixed_cluster import JAVA_BROKERS, KCORE_BROKER, Mixed  # noqa: E402
from tests.system.broker_processes import await_true  # noqa: E402

BROKERS = (*JAVA_BROKERS, KCORE_BROKER)


class MixedProcesses(Mixed):
    """With the methods of BrokerProcesses that a chain calls."""

    def __init__(self, directory: Path) -> None:
        super().__init__(copier_chain.jars("kafka39"), directory)
        self.timeline: list[tuple[float, str]] = []
        self.on_event: Callable[[float, str], None] = lambda at, event: None
        self._begin = time.monotonic()

    @property
    def running(self) -> list[int]:
        return [broker for broker in BROKERS if broker in self._processes]

    def note(self, event: str) -> None:
        self.timeline.append((time.monotonic() - self._begin, event))
        self.on_event(*self.timeline[-1])

    def start_all(self) -> None:
        self.start_zookeeper()
        self.connect()
        for broker in BROKERS:
            self.launch(broker)
        for broker in BROKERS:
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

    def await_whole_isr(self) -> None:  # type: ignore[override]
        partitions = [(number, topic) for topic, count in copier_chain.TOPICS.items() for number in range(count)]

        def is_whole() -> bool:
            states = [self.state(*partition) for partition in partitions]
            return all(state is not None and len(state.isr) == len(BROKERS) for state in states)

        await_true(is_whole, "the ISR is not whole")

    def partition_dirs(self, topic: str, partition: int) -> list[Path]:
        return [self.data_dir(broker) / f"{topic}-{partition}" for broker in BROKERS]

    def tracebacks(self) -> list[str]:
        output = (self.directory / f"{KCORE_BROKER}.out").read_text()
        return [output[at:][:2000]] if (at := output.find("Traceback (most recent")) >= 0 else []

    def report(self) -> str:
        lines = [f"{at:.1f} {event}" for at, event in self.timeline]
        return "\n".join([*lines, *(f"-- {path.name}\n{path.read_text()[-4000:]}" for path in self._outputs())])

    def _outputs(self) -> list[Path]:
        return sorted(self.directory.glob("*.out"))


def mixed_chain(directory: Path, seed: int) -> copier_chain.Chain:
    return copier_chain.Chain(MixedProcesses(directory), BROKERS, directory, seed)  # type: ignore[arg-type]


if __name__ == "__main__":
    sys.exit(copier_chain.main(sys.argv[1:], mixed_chain, __doc__))
