"""What clients with transactions do, and faults of their coordinators, as data; random_transactional_history(seed)."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from tests.sim.events import (
    CONSUMER,
    CONTROLLER,
    PRODUCER,
    Crash,
    Cut,
    Delay,
    Duplicate,
    Elect,
    Event,
    History,
    Lose,
    NewController,
    Pause,
    Produce,
    Settings,
    SlowDisk,
    StaleUpdate,
    Weights,
    swarm_weights,
)

#: Of partitions: those of t have the numbers from 0 on, those of the coordinators' topics these.
TRANSACTION_STATE, GROUP_OFFSETS = -1, -2

COMMIT, ABORT, NOTHING = "commit", "abort", "nothing"


@dataclass(frozen=True, slots=True)
class Transact(Event):
    """One transaction, after those that the client has still to do.

    partitions: one batch for each, in this order.  has_offsets: it also commits an offset of the client's group.
    ends: "commit", "abort", or "nothing": the client forgets it.  pause_ms: between two of its steps.  by: 0 for the
    last client that was made with this transactional id, 1 for the one before, a zombie.  patience_ms: after so long
    without an answer to a batch it aborts, whatever becomes of the batch; 0: it sends the batch again.
    """

    client: int
    partitions: tuple[int, ...] = (0,)
    records: int = 1
    has_offsets: bool = False
    ends: str = COMMIT
    pause_ms: int = 0
    by: int = 0
    patience_ms: int = 0

    def __str__(self) -> str:
        who = f"client {self.client}" if not self.by else f"client {self.client}, {self.by} before the last,"
        what = f"{self.records} record(s) for each of the partitions {list(self.partitions)}"
        offsets = " and an offset" if self.has_offsets else ""
        pause = f", {self.pause_ms} ms between its steps" if self.pause_ms else ""
        patience = f", {self.patience_ms} ms of patience" if self.patience_ms else ""
        return f"{who} has a transaction of {what}{offsets}, in the end {self.ends}{pause}{patience}"


@dataclass(frozen=True, slots=True)
class NewClient(Event):
    """Another client begins with the transactional id.  The one before knows nothing of it, and goes on."""

    client: int

    def __str__(self) -> str:
        return f"another client begins as client {self.client}"


@dataclass(frozen=True, slots=True)
class ReadCommitted(Event):
    """Some fetches of a consumer that reads committed records, at its position."""

    partition: int
    consumer: int = 0

    def __str__(self) -> str:
        return f"consumer {self.consumer} reads the committed records of partition {self.partition}"


@dataclass(frozen=True, slots=True)
class FetchOffset(Event):
    """Somebody asks for the offset that the client's group has committed."""

    client: int

    def __str__(self) -> str:
        return f"the offset of the group of client {self.client} is asked for"


@dataclass(frozen=True, slots=True)
class LateMessages(Event):
    """The next messages of a kind come late.  kind: the name of a request's class without "Request", or that and
    " answer"."""

    kind: str
    by_ms: int
    count: int = 1

    def __str__(self) -> str:
        return f"the next {self.count} message(s) {self.kind} come {self.by_ms} ms late"


@dataclass(frozen=True, slots=True)
class DieInAppend(Event):
    """The broker is killed at one of its coordinators' appends: an append counts twice, once after the records are in
    the broker's own log, once when they are replicated and nobody has heard of that."""

    broker: int
    moments: int = 1
    down_ms: int = 300

    def __str__(self) -> str:
        return (
            f"broker {self.broker} is killed {self.moments} moment(s) later in the appends of its coordinators, "
            f"for {self.down_ms} ms"
        )


def random_transactional_history(seed: int, *, events: int = 90, swarm: bool = True) -> History:
    """The history of a seed.  swarm: see events.swarm_weights()."""
    random = Random(f"transactions {seed}")
    weights = swarm_weights(seed, _CLIENTS, _FAULTS) if swarm else _CLIENTS + _FAULTS
    settings = Settings(
        transactions=True,
        brokers=random.choice([2, 3, 3]),
        partitions=random.choice([1, 2, 2]),
        min_insync_replicas=random.choice([1, 1, 2]),
        truncates_on_fetch=random.random() < 0.6,
        segment_bytes=random.choice([300, 1000, 100_000]),
        latency_ms=random.choice([1, 1, 3, 10]),
        flush_checkpoint_ms=random.choice([200, 1000, 5000]),
        transaction_timeout_ms=random.choice([600, 1500, 4000, 10_000]),
        asks_any_broker=random.random() < 0.4,
        transaction_versions=random.choice([(1,), (2,), (1, 2)]),
    )
    pace_ms = random.choice([20, 80, 250])
    at_ms = 50
    chosen: list[Event] = []
    for _ in range(events):
        at_ms += int(random.expovariate(1 / pace_ms))
        chosen.append(_random_event(random, settings, at_ms, weights))
    return History(settings, tuple(chosen), seed)


def _random_event(random: Random, settings: Settings, at_ms: int, weights: Weights) -> Event:
    brokers = range(settings.brokers)
    partition = random.choice([*range(settings.partitions), TRANSACTION_STATE, TRANSACTION_STATE, GROUP_OFFSETS])
    of_data = random.randrange(settings.partitions)
    broker = random.choice(brokers)
    (kind,) = random.choices([kind for kind, _ in weights], [weight for _, weight in weights])
    if kind is Transact:
        count = random.choice([1, 1, 2, 3])
        return Transact(
            at_ms,
            random.randrange(2),
            tuple(random.randrange(settings.partitions) for _ in range(count)),
            random.randint(1, 2),
            random.random() < 0.4,
            random.choice([COMMIT, COMMIT, COMMIT, ABORT, NOTHING]),
            random.choice([0, 0, 0, 5, 40, 400, 1000]),
            random.choice([0, 0, 0, 0, 1]),
            random.choice([0, 0, 20, 200]),
        )
    if kind is NewClient:
        return NewClient(at_ms, random.randrange(2))
    if kind is ReadCommitted:
        return ReadCommitted(at_ms, of_data, random.randrange(2))
    if kind is FetchOffset:
        return FetchOffset(at_ms, random.randrange(2))
    if kind is Produce:
        return Produce(at_ms, of_data, random.randint(1, 2))
    if kind is LateMessages:
        return LateMessages(at_ms, random.choice(_LATE), random.choice([15, 100, 400, 1500]), random.choice([1, 1, 3]))
    if kind is DieInAppend:
        return DieInAppend(at_ms, broker, random.randint(1, 6), random.choice([1, 20, 300, 2500]))
    if kind is Elect:
        return Elect(at_ms, partition, broker)
    if kind is NewController:
        return NewController(at_ms)
    if kind is StaleUpdate:
        return StaleUpdate(at_ms, partition, broker, random.randint(1, 3))
    if kind is Crash:
        how = random.choice(["loses power", "loses power", "is killed", "stops"])
        down_ms, noticed_ms = random.choice([1, 20, 300, 2500]), random.choice([1, 10, 300])
        return Crash(at_ms, broker, how, down_ms, noticed_ms, random.choice([0.0, 0.0, round(random.random(), 2), 1.0]))
    if kind is Pause:
        return Pause(at_ms, broker, random.choice([20, 200, 2000]))
    if kind is SlowDisk:
        return SlowDisk(at_ms, broker, random.choice([500, 3000]))
    addresses = [*brokers, *brokers, CONTROLLER, PRODUCER, PRODUCER, CONSUMER]
    a = broker
    b = random.choice([address for address in addresses if address != a])
    if kind is Cut:
        return Cut(at_ms, a, b, random.choice([30, 300, 2500]))
    if random.random() < 0.5:
        a, b = b, a
    count = random.choice([1, 1, 3])
    if kind is Lose:
        return Lose(at_ms, a, b, count)
    if kind is Delay:
        return Delay(at_ms, a, b, random.choice([3, 15, 100, 1000]), count)
    return Duplicate(at_ms, a, b, random.choice([1, 20, 500]), count)


#: Kinds of messages that are late; without the last ones they would be those of producers alone.
_LATE = ("Produce", "Produce", "InitProducerId", "AddPartitionsToTxn", "EndTxn", "TxnOffsetCommit", "EndTxn answer") + (
    ("WriteTxnMarkers", "WriteTxnMarkers", "AddPartitionsToTxn answer") * 2
)
_CLIENTS: Weights = [
    (Transact, 30),
    (ReadCommitted, 8),
    (FetchOffset, 3),
    (NewClient, 4),
]
_FAULTS: Weights = [
    (Produce, 4),
    (DieInAppend, 4),
    (LateMessages, 8),
    (Elect, 7),
    (NewController, 1),
    (StaleUpdate, 2),
    (Crash, 4),
    (Pause, 3),
    (SlowDisk, 2),
    (Cut, 4),
    (Lose, 6),
    (Delay, 10),
    (Duplicate, 4),
]
