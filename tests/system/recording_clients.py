"""Clients of librdkafka on threads of their own that add what they do to a history, for the checker of histories.

They go on while brokers are killed: what can be tried again is.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Mapping

import confluent_kafka
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from tests.histories.checker import Kind, Operation, Poll, Send
from tests.system.verifying_clients import ClientThread, client_settings

#: Of one call; those that can be tried again are.
_CALL_S = 10
_PAUSE_S = 0.02


class CommittedReader(ClientThread):
    """A consumer with read_committed that reads partitions from their start on.

    topics: name -> number of partitions.
    """

    def __init__(self, servers: str, name: str, topics: Mapping[str, int], history: list[Operation]) -> None:
        super().__init__(name)
        self._history = history
        #: (topic, partition) -> next offset, and how many records were read.
        self.positions = {(topic, number): 0 for topic, count in topics.items() for number in range(count)}
        self.counts = dict.fromkeys(topics, 0)
        self._consumer = confluent_kafka.Consumer(
            client_settings(servers, group_id=name, enable_auto_commit=False, auto_offset_reset="error")
            | {"isolation.level": "read_committed", "check.crcs": True}
        )
        self._go_on()

    def _go_on(self) -> None:
        self._consumer.assign([TopicPartition(*partition, at) for partition, at in self.positions.items()])

    def step(self) -> None:
        invoked = time.monotonic()
        records: dict[str, list[tuple[int, object]]] = {}
        is_out_of_range = False
        for message in self._consumer.consume(500, 0.1):
            if (error := message.error()) is not None:
                # A leader that does not know yet that it leads no more sends its readers out of range.
                is_out_of_range = is_out_of_range or error.code() == KafkaError._AUTO_OFFSET_RESET
                continue
            topic, number, offset = message.topic(), message.partition(), message.offset()
            records.setdefault(f"{topic}-{number}", []).append((offset, message.value()))
            self.positions[topic, number] = offset + 1
            self.counts[topic] += 1
        if records:
            self._history.append(Operation(self.name, Kind.OK, (Poll(records),), invoked, time.monotonic()))
        if is_out_of_range:
            self._go_on()

    def close(self) -> None:
        self._consumer.close()


class TransactionalWriter(ClientThread):
    """One transaction after the other, with a few records to random partitions of a topic; a quarter is aborted.

    After a fatal error it goes on as another process with the same transactional id.
    """

    def __init__(
        self, servers: str, name: str, topic: str, partitions: int, history: list[Operation], rng: random.Random
    ) -> None:
        super().__init__(name)
        self._servers, self._topic, self._partitions = servers, topic, partitions
        self._history, self._rng = history, rng
        self._lives = self._count = 0
        self._producer: confluent_kafka.Producer | None = None

    def step(self) -> None:
        producer = self._producer or self._next_life()
        sends: list[Send] = []
        invoked, kind = time.monotonic(), Kind.INFO
        is_commit = self._rng.random() < 0.75
        try:
            try:
                producer.begin_transaction()
                for _ in range(self._rng.randint(1, 20)):
                    self._send(producer, sends)
                producer.flush(_CALL_S)
            except KafkaException as error:
                is_commit = False
                if not error.args[0].txn_requires_abort():
                    raise
            kind = self._end(producer, is_commit)
        except KafkaException:
            self._producer = None  # fatal: no answer says how the transaction ends
        completed = math.inf if kind is Kind.INFO else time.monotonic()
        self._history.append(Operation(f"{self.name}.{self._lives}", kind, sends, invoked, completed))
        time.sleep(_PAUSE_S)

    def _next_life(self) -> confluent_kafka.Producer:
        self._lives += 1
        self._producer = confluent_kafka.Producer(
            client_settings(self._servers, transactional_id=self.name, transaction_timeout_ms=60_000)
        )
        _repeat(self._producer.init_transactions)
        return self._producer

    def _send(self, producer: confluent_kafka.Producer, sends: list[Send]) -> None:
        number, index = self._rng.randrange(self._partitions), len(sends)
        value = b"%d" % self._count
        self._count += 1

        def is_delivered(error: object, message: confluent_kafka.Message) -> None:
            offset = message.offset()
            if error is None and offset is not None and offset >= 0:
                sends[index] = sends[index]._replace(offset=offset)

        sends.append(Send(f"{self._topic}-{number}", value))
        producer.produce(self._topic, value, partition=number, on_delivery=is_delivered)

    def _end(self, producer: confluent_kafka.Producer, is_commit: bool) -> Kind:
        if is_commit:
            try:
                _repeat(producer.commit_transaction)
                return Kind.OK
            except KafkaException as error:
                if not error.args[0].txn_requires_abort():
                    raise
        _repeat(producer.abort_transaction)
        return Kind.FAIL


def _repeat(call: Callable[[float], object]) -> None:
    """Until the coordinator has answered.  Raises KafkaException for what cannot be tried again."""
    while True:
        try:
            call(_CALL_S)
            return
        except KafkaException as error:
            if not error.args[0].retriable():
                raise
