"""What must hold of transactions.

Each is a function with a name and one sentence, and raises BrokenInvariant.  To add one: write it, call it from
ledger.py or cluster.py, and add a scenario with a rule without which it breaks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kcore.common.topic_partition import TopicPartition
from kcore.coordinator.transaction.transaction_state import Producer
from tests.sim.invariants import BrokenInvariant

if TYPE_CHECKING:
    from tests.sim.transactions.ledger import ClientLife, Transaction


# -- while it runs -------------------------------------------------------------------------------------------------


def a_producer_id_and_epoch_is_given_once(
    given: dict[Producer, ClientLife], life: ClientLife, producer: Producer
) -> None:
    """No two clients get the same producer id and epoch, and no two transactional ids the same producer id."""
    owner = given.get(producer)
    if owner is not None and owner is not life:
        raise BrokenInvariant(
            "a_producer_id_and_epoch_is_given_once", f"{tuple(producer)} was given to {owner}, and now to {life}"
        )
    for other, of_other in given.items():
        if other.producer_id == producer.producer_id and of_other.transactional_id != life.transactional_id:
            raise BrokenInvariant(
                "a_producer_id_and_epoch_is_given_once",
                f"{tuple(other)} was given to {of_other}, and now {life} has it",
            )


def a_zombie_commits_nothing(transaction: Transaction, how: str) -> None:
    """A commit that a client asks for after a newer client got its epoch is never answered as done."""
    if how == "commit" and transaction.was_late:
        raise BrokenInvariant("a_zombie_commits_nothing", f"{transaction}: its commit was acknowledged")


def a_consumer_goes_forward(tp: TopicPartition, seen: list[tuple[int, bytes]], offset: int) -> None:
    """A consumer gets records in the order of their offsets, each once."""
    if seen and offset <= seen[-1][0]:
        raise BrokenInvariant("a_consumer_goes_forward", f"{tp}: offset {offset} after {seen[-1][0]}")


def what_a_consumer_sees_was_to_be_committed(transaction: Transaction, tp: TopicPartition, offset: int) -> None:
    """A consumer of committed records gets none of a transaction that its client has not asked to commit."""
    if transaction.asked != "commit":
        raise BrokenInvariant(
            "what_a_consumer_sees_was_to_be_committed", f"{tp} {offset}: {transaction}, asked for {transaction.asked}"
        )


def a_zombie_writes_nothing_visible(transaction: Transaction, tp: TopicPartition, offset: int) -> None:
    """What a client has not asked to commit before a newer one was given an epoch is never seen."""
    if transaction.was_late:
        raise BrokenInvariant("a_zombie_writes_nothing_visible", f"{tp} {offset}: {transaction}")


def a_committed_offset_was_to_be_committed(transaction: Transaction, transactional_id: str) -> None:
    """A group's stable offset is one of a transaction that its client has asked to commit, in time."""
    if transaction.asked != "commit" or transaction.was_late or not transaction.has_offset:
        raise BrokenInvariant("a_committed_offset_was_to_be_committed", f"group of {transactional_id}: {transaction}")


def a_stable_offset_is_not_older_than_an_acknowledged_commit(transactional_id: str, number: int, least: int) -> None:
    """Who asks for a stable offset gets none that is older than the last commit that was acknowledged before."""
    if number < least:
        raise BrokenInvariant(
            "a_stable_offset_is_not_older_than_an_acknowledged_commit",
            f"group of {transactional_id}: of transaction {number}, that of {least} was acknowledged before",
        )


# -- at the end ----------------------------------------------------------------------------------------------------


def no_transaction_stays_open(open_ones: list[str]) -> None:
    """When the faults are over, each transaction ends within its timeout and a fail-over, everywhere."""
    if open_ones:
        raise BrokenInvariant("no_transaction_stays_open", "; ".join(open_ones))


def consumers_see_the_same(tp: TopicPartition, consumer: int, first: list[bytes], values: list[bytes]) -> None:
    """At the end all consumers of a partition have got the same records."""
    if first != values:
        raise BrokenInvariant("consumers_see_the_same", f"{tp}: consumer {consumer} has {values}, another one {first}")


def a_transaction_is_seen_whole_or_not_at_all(
    transaction: Transaction, visible: dict[TopicPartition, list[bytes]]
) -> None:
    """Of a transaction consumers get all records, each once and in the order in which they were sent, or none."""
    found = _visible(transaction, visible)
    if any(found.values()) and found != transaction.records:
        raise BrokenInvariant(
            "a_transaction_is_seen_whole_or_not_at_all",
            f"{transaction} has {dict(transaction.records)}, seen is {found}",
        )


def an_acknowledged_end_is_what_consumers_see(
    transaction: Transaction, visible: dict[TopicPartition, list[bytes]]
) -> None:
    """A commit that was acknowledged is seen, and an abort is not."""
    is_seen = any(_visible(transaction, visible).values())
    if (transaction.outcome == "commit" and not is_seen) or (transaction.outcome == "abort" and is_seen):
        what = "is seen" if is_seen else "is not seen"
        raise BrokenInvariant(
            "an_acknowledged_end_is_what_consumers_see",
            f"{transaction}: {transaction.outcome} was acknowledged, it {what}",
        )


def _visible(transaction: Transaction, visible: dict[TopicPartition, list[bytes]]) -> dict[TopicPartition, list[bytes]]:
    return {
        tp: [value for value in visible.get(tp, ()) if value in values] for tp, values in transaction.records.items()
    }


def offsets_move_with_their_transaction(transactional_id: str, expected: int, committed: int) -> None:
    """The offset of a group is that of the last transaction whose records are seen."""
    if expected != committed:
        raise BrokenInvariant(
            "offsets_move_with_their_transaction",
            f"group of {transactional_id}: of transaction {committed}, the last one that is seen is {expected}",
        )


#: Names of all.
OF_TRANSACTIONS = tuple(
    name
    for name, value in list(globals().items())
    if getattr(value, "__module__", "") == __name__ and not name.startswith("_")
)
