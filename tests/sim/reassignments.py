"""The reassignments that clients asked for, those that are stored, and the logs that may stay after them.

A reassignment ends with exactly the target replicas, or is cancelled without a trace.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from kcore.common.topic_partition import TopicPartition
from kcore.errors import ApiError, RequestTimedOut, UnknownServerError
from kcore.metadata import znodes

#: Partition -> its replicas after the reassignment, None to cancel the one that runs.
Targets = Mapping[TopicPartition, Sequence[int] | None]
#: The error of each partition, or of the request.
Answer = Mapping[TopicPartition, ApiError | None] | ApiError


class Outcome(NamedTuple):
    """The replicas that a partition may have in the end.  After a cancellation they may have another order.

    order: the number of the order in the store that asked for it, 0 for a request.
    """

    replicas: tuple[int, ...]
    is_ordered: bool
    order: int = 0

    def is_met_by(self, replicas: Sequence[int]) -> bool:
        if self.is_ordered:
            return self.replicas == tuple(replicas)
        return set(self.replicas) == set(replicas)


@dataclass(slots=True)
class Leaving:
    """A replica that was taken out of the assignment; its log is to be deleted, without another registration of the
    broker and without another controller.

    deletions: more than one if the replica came back before the broker had heard that it was taken out: the broker
    deletes its log, makes it anew, and deletes that.
    """

    registration: int
    controller_epoch: int
    deletions: int = 1
    had_log: bool = False


class World(Protocol):
    """What Reassignments asks of the cluster."""

    def registration_of(self, broker: int) -> int | None: ...

    def controller_epoch(self) -> int: ...

    def has_log(self, broker: int, tp: TopicPartition) -> bool | None:
        """None for a broker that is down."""


class Reassignments:
    """left: (broker, partition) whose log may stay until the broker starts again, as Kafka's controller leaves it
    behind, too: the broker's session or the controller ended before the log was deleted."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._stored: dict[TopicPartition, tuple[int, ...]] = {}
        #: The last stored assignment without a reassignment.
        self._settled: dict[TopicPartition, tuple[int, ...]] = {}
        self._running: set[TopicPartition] = set()
        self._outcomes: dict[TopicPartition, list[Outcome]] = {}
        #: Requests without an answer: number -> (the broker that was asked, what each partition may become).
        self._asked: dict[int, tuple[int, dict[TopicPartition, Outcome]]] = {}
        self._requests = 0
        #: How many orders there were in the store.
        self.orders = 0
        self._leaving: dict[tuple[int, TopicPartition], Leaving] = {}
        #: Replicas that are being added again: how many deletions of their logs may be on their way.
        self._late_deletions: Counter[tuple[int, TopicPartition]] = Counter()
        self.left: set[tuple[int, TopicPartition]] = set()
        self.counts: Counter[str] = Counter()

    # -- requests ---------------------------------------------------------------------------------------------------

    def ask(
        self, broker: int, targets: Targets, orders_before: int
    ) -> Callable[[Mapping[TopicPartition, ApiError | None] | ApiError], None]:
        """A controller gets a request; what comes back is to be called with its answer.

        orders_before: `orders` when the request was sent.  Of an order that came meanwhile nobody can say whether it
        was carried out before the request or after it.
        """
        self._requests += 1
        number = self._requests
        self._asked[number] = (broker, {tp: self._outcome(tp, target) for tp, target in targets.items()})

        def answered(result: Answer) -> None:
            asked = self._asked.pop(number, None)
            if asked is None:
                return
            for tp, outcome in asked[1].items():
                error = result if isinstance(result, ApiError) else result[tp]
                what = "accepted" if outcome.is_ordered else "cancelled"
                self.counts[what if error is None else f"refused: {type(error).__name__}"] += 1
                if isinstance(error, RequestTimedOut | UnknownServerError):  # perhaps done
                    self._outcomes.setdefault(tp, []).append(outcome)
                elif error is None:
                    # Another one may have ended since it was asked to be cancelled.
                    accepted = outcome if outcome.is_ordered else Outcome(self._settled[tp], False)
                    meanwhile = [other for other in self._outcomes.get(tp, ()) if other.order > orders_before]
                    self._outcomes[tp] = [accepted, *meanwhile]

        return answered

    def order(self, targets: Mapping[TopicPartition, Sequence[int]]) -> None:
        """An order in the store: nobody hears whether it is refused."""
        self.orders += 1
        for tp, target in targets.items():
            self._outcomes.setdefault(tp, []).append(Outcome(tuple(target), True, self.orders))

    def broker_ended(self, broker: int) -> None:
        """What it was asked may have been done, or not."""
        for number, (asked, outcomes) in list(self._asked.items()):
            if asked == broker:
                del self._asked[number]
                for tp, outcome in outcomes.items():
                    self._outcomes.setdefault(tp, []).append(outcome)

    def broker_started(self, broker: int, existing: Collection[TopicPartition]) -> None:
        """Its logs of existing partitions that are on others alone are strays now."""
        self.left = {(of_broker, tp) for of_broker, tp in self.left if of_broker != broker or tp not in existing}

    def _outcome(self, tp: TopicPartition, target: Sequence[int] | None) -> Outcome:
        return Outcome(self._settled.get(tp, ()), False) if target is None else Outcome(tuple(target), True)

    def stays(self, broker: int, tp: TopicPartition) -> bool:
        """Whether no reassignment that runs, or may, takes this replica away."""
        asked = [outcomes[tp] for _, outcomes in self._asked.values() if tp in outcomes]
        outcomes = [*self._outcomes.get(tp, ()), *asked]
        return broker in self._settled.get(tp, ()) and all(broker in outcome.replicas for outcome in outcomes)

    # -- what is stored ---------------------------------------------------------------------------------------------

    def topic_created(self, name: str, node: znodes.TopicZNode) -> None:
        self.topic_deleted(name)
        for number, replicas in node.assignment.items():
            tp = TopicPartition(name, number)
            self._stored[tp] = self._settled[tp] = tuple(replicas)
            self._outcomes[tp] = [Outcome(tuple(replicas), True)]

    def may_have_logs(self, name: str) -> bool:
        """Whether a log that a reassignment of this topic has left, or not deleted yet, may be there."""
        keys = [key for key in (*self.left, *self._leaving) if key[1].topic == name]
        return any(self._world.has_log(*key) is not False for key in keys)

    def topic_deleted(self, name: str) -> None:
        for of_partition in (self._stored, self._settled, self._outcomes):
            for tp in [tp for tp in of_partition if tp.topic == name]:
                del of_partition[tp]
        self._running = {tp for tp in self._running if tp.topic != name}
        self._leaving = {key: leaving for key, leaving in self._leaving.items() if key[1].topic != name}
        for key in [key for key in self._late_deletions if key[1].topic == name]:
            del self._late_deletions[key]

    def topic_written(self, name: str, node: znodes.TopicZNode, live: Mapping[int, int]) -> list[str]:
        """What has changed, for a reader.  live: the live brokers that the writer knows, with their registrations."""
        told = []
        for number, replicas in node.assignment.items():
            tp = TopicPartition(name, number)
            adding, removing = node.adding.get(number) or (), node.removing.get(number) or ()
            if adding or removing:
                self._running.add(tp)
            else:
                self.counts["ended"] += tp in self._running
                self._running.discard(tp)
                self._settled[tp] = tuple(replicas)
            gone = set(self._stored.get(tp, ())) - set(replicas)
            for broker in replicas:
                if (leaving := self._leaving.pop((broker, tp), None)) is not None:
                    self._late_deletions[broker, tp] += leaving.deletions
                if broker not in adding and broker not in removing:
                    del self._late_deletions[broker, tp]
                self.left.discard((broker, tp))
            for broker in sorted(gone):
                if broker not in live:
                    self._leave(broker, tp)
                else:
                    deletions = 1 + self._late_deletions.pop((broker, tp), 0)
                    self._leaving[broker, tp] = Leaving(live[broker], self._world.controller_epoch(), deletions)
            if self._stored.get(tp) != tuple(replicas) or adding or removing:
                told.append(f"{tp}: replicas {list(replicas)}, adding {list(adding)}, removing {list(removing)}")
            self._stored[tp] = tuple(replicas)
        return told

    def check_leaving(self) -> None:
        """After a step: which logs are deleted, and which may stay."""
        for (broker, tp), leaving in list(self._leaving.items()):
            has_log = self._world.has_log(broker, tp)
            if leaving.had_log and has_log is False:
                leaving.deletions -= 1
                leaving.had_log = False
            if not leaving.deletions:
                del self._leaving[broker, tp]
            elif (leaving.registration, leaving.controller_epoch) != (
                self._world.registration_of(broker),
                self._world.controller_epoch(),
            ):
                del self._leaving[broker, tp]
                self._leave(broker, tp)
            leaving.had_log = leaving.had_log or has_log is True

    def _leave(self, broker: int, tp: TopicPartition) -> None:
        self.left.add((broker, tp))
        self.counts["a log may be left"] += 1

    # -- the end ----------------------------------------------------------------------------------------------------

    def unfinished(self, tp: TopicPartition, brokers: Sequence[int]) -> str | None:
        """Why a partition does not have exactly the replicas that it is to have."""
        replicas = self._stored[tp]
        if tp in self._running:
            return f"{tp} is still being reassigned: {list(replicas)}"
        outcomes = [*self._outcomes[tp], *(outcomes[tp] for _, outcomes in self._asked.values() if tp in outcomes)]
        if not any(outcome.is_met_by(replicas) for outcome in outcomes):
            wanted = " or ".join(str(list(outcome.replicas)) for outcome in outcomes)
            return f"{tp} has the replicas {list(replicas)}, not {wanted}"
        for broker in brokers:
            has_log = self._world.has_log(broker, tp)
            if has_log != (broker in replicas) and (broker, tp) not in self.left:
                return f"{tp}: broker {broker} has {'a' if has_log else 'no'} log, replicas {list(replicas)}"
        return None
