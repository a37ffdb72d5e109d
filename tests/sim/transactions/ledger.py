"""The answers to clients with transactions, and the records that consumers have read."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from kcore.common.topic_partition import TopicPartition
from kcore.coordinator.transaction.transaction_state import Producer
from tests.sim.transactions import invariants


@dataclass(eq=False)
class ClientLife:
    """One client with a transactional id."""

    transactional_id: str
    number: int

    def __str__(self) -> str:
        return f"{self.transactional_id}, client {self.number}"


@dataclass(eq=False)
class Transaction:
    """number: in the order in which they begin.  records: the values, in the order in which they were sent.

    was_late: another client had been given a later epoch when this one asked for the first time.  outcome: what the
    client was answered: "commit", "abort", None.
    """

    number: int
    life: ClientLife
    producer: Producer
    records: dict[TopicPartition, list[bytes]] = field(default_factory=lambda: defaultdict(list))
    has_offset: bool = False
    asked: str | None = None
    was_late: bool = False
    outcome: str | None = None

    def __str__(self) -> str:
        return f"transaction {self.number} of {self.life} with {tuple(self.producer)}"

    @property
    def num_records(self) -> int:
        return sum(len(values) for values in self.records.values())


class Ledger:
    def __init__(self) -> None:
        self.transactions: list[Transaction] = []
        #: Value of a record -> its transaction.
        self.by_value: dict[bytes, Transaction] = {}
        #: Consumer -> what it has got, in this order: offset and value.
        self.seen: dict[tuple[TopicPartition, int], list[tuple[int, bytes]]] = defaultdict(list)
        self.given: dict[Producer, ClientLife] = {}
        #: Transactional id -> the latest epoch that a client of it was given.
        self.last_given: dict[str, Producer] = {}
        #: Transactional id -> the group's offset at the end.
        self.last_offsets: dict[str, int] = {}
        self.counts = dict.fromkeys(("commits", "aborts", "unknown ends", "fenced", "records seen", "offsets seen"), 0)

    # -- clients ----------------------------------------------------------------------------------------------------

    def producer_given(self, life: ClientLife, producer: Producer) -> None:
        invariants.a_producer_id_and_epoch_is_given_once(self.given, life, producer)
        self.given[producer] = life
        last = self.last_given.get(life.transactional_id, producer)
        self.last_given[life.transactional_id] = max(last, producer)

    def begin(self, life: ClientLife, producer: Producer) -> Transaction:
        transaction = Transaction(len(self.transactions), life, producer)
        self.transactions.append(transaction)
        return transaction

    def ask(self, transaction: Transaction, how: str) -> None:
        """Its client asks for this end for the first time."""
        transaction.asked = how
        transaction.was_late = transaction.producer < self.last_given[transaction.life.transactional_id]

    def answered(self, transaction: Transaction, how: str) -> None:
        invariants.a_zombie_commits_nothing(transaction, how)
        transaction.outcome = how
        self.counts[f"{how}s"] += 1

    # -- consumers --------------------------------------------------------------------------------------------------

    def saw(self, tp: TopicPartition, consumer: int, offset: int, value: bytes) -> None:
        seen = self.seen[tp, consumer]
        invariants.a_consumer_goes_forward(tp, seen, offset)
        seen.append((offset, value))
        transaction = self.by_value.get(value)
        if transaction is not None:
            self.counts["records seen"] += 1
            invariants.what_a_consumer_sees_was_to_be_committed(transaction, tp, offset)
            invariants.a_zombie_writes_nothing_visible(transaction, tp, offset)

    def last_acknowledged_offset(self, transactional_id: str) -> int:
        """Of the group: the number of the transaction, -1 for none."""
        return max(
            (
                transaction.number
                for transaction in self.transactions
                if transaction.has_offset
                and transaction.outcome == "commit"
                and transaction.life.transactional_id == transactional_id
            ),
            default=-1,
        )

    def saw_offset(self, transactional_id: str, number: int, least: int) -> None:
        """least: the last one that was acknowledged before somebody asked."""
        invariants.a_stable_offset_is_not_older_than_an_acknowledged_commit(transactional_id, number, least)
        if number >= 0:
            self.counts["offsets seen"] += 1
            invariants.a_committed_offset_was_to_be_committed(self.transactions[number], transactional_id)

    # -- the end ----------------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Each consumer is at the end of its partition."""
        visible: dict[TopicPartition, list[bytes]] = {}
        for (tp, consumer), seen in sorted(self.seen.items()):
            values = [value for _, value in seen]
            invariants.consumers_see_the_same(tp, consumer, visible.setdefault(tp, values), values)
        for transaction in self.transactions:
            invariants.a_transaction_is_seen_whole_or_not_at_all(transaction, visible)
            invariants.an_acknowledged_end_is_what_consumers_see(transaction, visible)
        seen_values = {value for values in visible.values() for value in values}
        for transactional_id, offset in self.last_offsets.items():
            committed = [
                transaction.number
                for transaction in self.transactions
                if transaction.has_offset
                and transaction.life.transactional_id == transactional_id
                and any(value in seen_values for values in transaction.records.values() for value in values)
            ]
            invariants.offsets_move_with_their_transaction(transactional_id, max(committed, default=-1), offset)
