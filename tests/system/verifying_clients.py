"""Clients on threads of their own, which tell the histories of the partitions what they send and see.

Each client is one of librdkafka.  Those that fail for want of a broker try again; whatever contradicts what was seen
before goes into the history as a fault.
"""

from __future__ import annotations

import math
import random
import sys
import threading
import time
import traceback
from collections.abc import Sequence

import confluent_kafka
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from tests.system.partition_history import PartitionHistory

#: Records that a producer has sent and no broker has answered.
MAX_WAITING = 5_000
#: How often a producer sends, and how many records.
_PAUSE_S, _BURST = 0.02, 10
#: For one fresh consumer to read what others have read: partitions may be without a leader meanwhile.
_FRESH_READ_S = 180
_GROUP = "kill-everything"
_STOP_S = 120
#: A call of librdkafka that is to take 0.2 s and takes so long never returns.
_HANG_S = 30


def client_settings(servers: str, **settings: object) -> dict[str, object]:
    return {"bootstrap.servers": servers, "log_level": 2, **{n.replace("_", "."): v for n, v in settings.items()}}


class ClientThread:
    """Repeats `step` until stop()."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.crash: BaseException | None = None
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def step(self) -> None:
        raise NotImplementedError

    def close(self) -> None:
        pass

    def stop(self) -> bool:
        """Whether it has stopped within two minutes: a call of the client may never return."""
        self._stopped.set()
        self._thread.join(_STOP_S)
        return not self._thread.is_alive()

    def where(self) -> str:
        """The line of this project that the thread is in, for reports."""
        frame = sys._current_frames().get(self._thread.ident or 0)
        return traceback.format_stack(frame)[-1].strip() if frame else "its thread has ended"

    def _run(self) -> None:
        try:
            while not self._stopped.is_set():
                self.step()
            self.close()
        except BaseException as error:
            self.crash = error


class VerifyingProducer(ClientThread):
    """Idempotent, acks=all; to each partition in turn."""

    def __init__(self, servers: str, name: str, topic: str, histories: Sequence[PartitionHistory], codec: str) -> None:
        super().__init__(name)
        self.refused: list[str] = []
        self._topic, self._histories = topic, histories
        self._count = 0
        # No time-out: how long a partition may be without a leader is up to the kills.
        self._producer = confluent_kafka.Producer(
            client_settings(servers, acks="all", enable_idempotence=True, linger_ms=2, message_timeout_ms=0)
            | {"compression.type": codec}
        )

    def step(self) -> None:
        for _ in range(_BURST if len(self._producer) < MAX_WAITING else 0):
            partition = self._count % len(self._histories)
            value = self._histories[partition].send(self.name, time.monotonic())
            self._producer.produce(self._topic, value, partition=partition, on_delivery=self._delivered)
            self._count += 1
        self._producer.poll(0)
        time.sleep(_PAUSE_S)

    def _delivered(self, error: object, message: confluent_kafka.Message) -> None:
        if error is not None:
            self.refused.append(f"{self.name}: {error}")
        else:
            offset = message.offset()
            history = self._histories[message.partition()]
            history.acknowledge(message.value(), offset if offset is not None else -1, time.monotonic())

    def flush(self, timeout_s: float) -> int:
        """Records without an answer, after stop()."""
        return int(self._producer.flush(timeout_s))


class _Reader(ClientThread):
    def __init__(self, servers: str, name: str, topic: str, histories: Sequence[PartitionHistory]) -> None:
        super().__init__(name)
        self._servers, self._topic, self._histories = servers, topic, histories

    def _consumer(self, **settings: object) -> confluent_kafka.Consumer:
        defaults = {"group_id": self.name, "enable_auto_commit": False, "auto_offset_reset": "error"}
        return confluent_kafka.Consumer(client_settings(self._servers, **(defaults | {"check_crcs": True} | settings)))

    def _assigned(self, offsets: Sequence[int]) -> confluent_kafka.Consumer:
        consumer = self._consumer()
        consumer.assign([TopicPartition(self._topic, number, offset) for number, offset in enumerate(offsets)])
        return consumer


class TailReader(_Reader):
    """One consumer that reads every partition from its start, as long as it runs."""

    def __init__(
        self,
        servers: str,
        name: str,
        topic: str,
        histories: Sequence[PartitionHistory],
        positions: Sequence[int] | None = None,
    ) -> None:
        super().__init__(servers, name, topic, histories)
        self.positions = list(positions or [0] * len(histories))
        self._assigned_consumer = self._assigned(self.positions)
        self._called_at = math.inf

    @property
    def hangs(self) -> bool:
        return time.monotonic() - self._called_at > _HANG_S

    def successor(self) -> TailReader:
        """One that goes on where this one hangs."""
        return TailReader(self._servers, f"{self.name}'", self._topic, self._histories, self.positions)

    def step(self) -> None:
        self._called_at = time.monotonic()
        messages = self._assigned_consumer.consume(500, 0.2)
        self._called_at = math.inf
        for message in messages:
            if (error := message.error()) is not None:
                if error.code() in (KafkaError._AUTO_OFFSET_RESET, KafkaError._LOG_TRUNCATION):
                    self._histories[message.partition()].fault(f"{self.name} lost its place: {error}")
                continue
            partition, offset = message.partition(), message.offset()
            if offset != self.positions[partition]:
                self._histories[partition].fault(f"{self.name} reads {offset} after {self.positions[partition] - 1}")
            self._histories[partition].read(self.name, offset, message.value())
            self.positions[partition] = offset + 1

    def close(self) -> None:
        self._assigned_consumer.close()


class FreshReader(_Reader):
    """A new consumer again and again, which reads some of what others have read: all of it is still there."""

    def __init__(
        self, servers: str, name: str, topic: str, histories: Sequence[PartitionHistory], rng: random.Random
    ) -> None:
        super().__init__(servers, name, topic, histories)
        self.rounds = 0
        self.out_of_range = 0
        self._rng = rng

    def step(self) -> None:
        ends = [len(history.values) for history in self._histories]
        if not any(ends):
            time.sleep(0.1)
            return
        offsets = [max(0, end - self._rng.randint(1, 500)) if end else 0 for end in ends]
        deadline = time.monotonic() + _FRESH_READ_S
        # A leader that does not know yet that it leads no more sends a client that asks it first out of range.
        while not self._reads(offsets, ends, deadline):
            self.out_of_range += 1
        self.rounds += 1

    def _reads(self, offsets: list[int], ends: list[int], deadline: float) -> bool:
        consumer = self._assigned(offsets)
        positions = list(offsets)
        try:
            while any(position < end for position, end in zip(positions, ends, strict=True)):
                if self._stopped.is_set():
                    return True
                if time.monotonic() > deadline:
                    for number, (position, end) in enumerate(zip(positions, ends, strict=True)):
                        if position < end:
                            text = f"reads nothing at {position} for {_FRESH_READ_S} s, where {end - 1} was read"
                            self._histories[number].fault(f"{self.name} {text}")
                    return True
                for message in consumer.consume(500, 0.2):
                    if (error := message.error()) is not None:
                        if error.code() == KafkaError._AUTO_OFFSET_RESET:
                            return False
                        continue
                    partition, offset = message.partition(), message.offset()
                    if offset != positions[partition]:
                        self._histories[partition].fault(f"{self.name} reads {offset} at {positions[partition]}")
                    if offset < ends[partition]:
                        self._histories[partition].read(self.name, offset, message.value())
                    positions[partition] = offset + 1
        finally:
            consumer.close()
        return True


class WatermarkReader(_Reader):
    """Asks for the end of each partition (ListOffsets), which never goes back."""

    def __init__(self, servers: str, name: str, topic: str, histories: Sequence[PartitionHistory]) -> None:
        super().__init__(servers, name, topic, histories)
        self.answers = 0
        self._asking = self._consumer()

    def step(self) -> None:
        for number, history in enumerate(self._histories):
            high_watermark = self.high_watermark(number)
            if high_watermark is not None:
                self.answers += 1
                history.high_watermark(self.name, high_watermark)
        time.sleep(0.1)

    def high_watermark(self, partition: int) -> int | None:
        try:
            return int(self._asking.get_watermark_offsets(TopicPartition(self._topic, partition), timeout=2)[1])
        except KafkaException:
            return None

    def close(self) -> None:
        self._asking.close()


class GroupReader(_Reader):
    """A member of a group that reads and commits, then leaves, and comes back as a new one: it goes on where the last
    commit that was acknowledged is, or after it."""

    def __init__(
        self, servers: str, name: str, topic: str, histories: Sequence[PartitionHistory], rng: random.Random
    ) -> None:
        super().__init__(servers, name, topic, histories)
        self.commits = 0
        self.members = 0
        self._rng = rng
        self._committed = [0] * len(histories)

    def step(self) -> None:
        consumer = self._consumer(group_id=_GROUP, auto_offset_reset="earliest", session_timeout_ms=10_000)
        consumer.subscribe([self._topic])
        self.members += 1
        first: set[int] = set()
        end = time.monotonic() + self._rng.uniform(2, 20)
        try:
            while time.monotonic() < end and not self._stopped.is_set():
                messages = [message for message in consumer.consume(500, 0.2) if message.error() is None]
                for message in messages:
                    partition, offset = message.partition(), message.offset()
                    if partition not in first and offset < self._committed[partition]:
                        committed = self._committed[partition]
                        self._histories[partition].fault(f"the group reads {offset}, having committed {committed}")
                    first.add(partition)
                if messages:
                    self._commit(consumer)
        finally:
            consumer.close()

    def _commit(self, consumer: confluent_kafka.Consumer) -> None:
        try:
            committed = consumer.commit(asynchronous=False)
        except KafkaException:
            return
        for partition in committed or ():
            if partition.error is None and partition.offset >= 0:
                self.commits += 1
                self._committed[partition.partition] = max(self._committed[partition.partition], partition.offset)


def stop_all(clients: Sequence[ClientThread]) -> list[str]:
    """The names of those that do not stop."""
    return [client.name for client in clients if not client.stop()]
