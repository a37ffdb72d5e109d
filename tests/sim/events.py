"""What happens to a simulated cluster from outside, as data: clients' requests, faults, elections.

A history is a list of events, each at a fixed time, none of which refers to another: a history from which some events
were left out still makes sense, which is what shrink.py relies on.  repr() of an event can be pasted into a test.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from random import Random

#: The addresses of everybody but the brokers, which have their ids.
CONTROLLER = -1
PRODUCER = -2
CONSUMER = -3
STORE = -4
ADMIN = -5

NAMES = {
    CONTROLLER: "the controller",
    PRODUCER: "the producers",
    CONSUMER: "the consumers",
    STORE: "the store",
    ADMIN: "the operator",
}


def name_of(address: int) -> str:
    return NAMES.get(address, f"broker {address}")


@dataclass(frozen=True, slots=True)
class Event:
    """at_ms: of the simulation's clock, which begins at 0."""

    at_ms: int

    def __str__(self) -> str:
        """One sentence for a reader of a history."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class Produce(Event):
    """to: the broker that it is sent to, whether it leads or not; None: the leader.  Not sent again."""

    partition: int
    records: int = 1
    size: int = 1
    acks: int = -1
    to: int | None = None

    def __str__(self) -> str:
        where = "the leader" if self.to is None else f"broker {self.to}"
        acks = "all" if self.acks == -1 else self.acks
        return f"a producer sends {self.records} record(s) of partition {self.partition} to {where}, acks={acks}"


@dataclass(frozen=True, slots=True)
class ProduceIdempotent(Event):
    """acks=all, one batch in flight, sent again until it is answered."""

    partition: int
    producer: int
    records: int = 1

    def __str__(self) -> str:
        return f"idempotent producer {self.producer} sends {self.records} record(s) of partition {self.partition}"


@dataclass(frozen=True, slots=True)
class Consume(Event):
    """One fetch at the consumer's position.  to: as in Produce."""

    partition: int
    consumer: int = 0
    to: int | None = None

    def __str__(self) -> str:
        where = "the leader" if self.to is None else f"broker {self.to}"
        return f"consumer {self.consumer} fetches partition {self.partition} from {where}"


@dataclass(frozen=True, slots=True)
class DeleteRecords(Event):
    """share: of the records below the leader's high watermark."""

    partition: int
    share: float

    def __str__(self) -> str:
        return f"{self.share:.0%} of the committed records of partition {self.partition} are deleted"


@dataclass(frozen=True, slots=True)
class Elect(Event):
    partition: int
    broker: int

    def __str__(self) -> str:
        return f"the controller elects broker {self.broker} for partition {self.partition}, if it may"


@dataclass(frozen=True, slots=True)
class NewController(Event):
    """A new controller with the next epoch sends the state of every partition to every broker."""

    def __str__(self) -> str:
        return "a new controller sends all states"


@dataclass(frozen=True, slots=True)
class StaleUpdate(Event):
    """A LeaderAndIsr request of long ago arrives (again).  back: how many states ago it was true."""

    partition: int
    broker: int
    back: int = 1

    def __str__(self) -> str:
        return (
            f"broker {self.broker} gets the LeaderAndIsr request of {self.back} state(s) ago "
            f"for partition {self.partition}"
        )


@dataclass(frozen=True, slots=True)
class Crash(Event):
    """how: "loses power" (kept: the share of the unsynced bytes that stays), "is killed" or "stops".  The broker starts
    again after down_ms; the controller notices after noticed_ms, or at the start."""

    broker: int
    how: str
    down_ms: int = 100
    noticed_ms: int = 10
    kept: float = 0.0

    def __str__(self) -> str:
        kept = f", {self.kept:.0%} of its unsynced bytes stay" if self.how == "loses power" else ""
        return (
            f"broker {self.broker} {self.how}{kept}; it starts again after {self.down_ms} ms, "
            f"the controller notices after {min(self.noticed_ms, self.down_ms)} ms"
        )


@dataclass(frozen=True, slots=True)
class Pause(Event):
    """The broker does nothing for a while (a garbage collection, a stopped virtual machine); what comes waits."""

    broker: int
    for_ms: int

    def __str__(self) -> str:
        return f"broker {self.broker} stands still for {self.for_ms} ms"


@dataclass(frozen=True, slots=True)
class SlowDisk(Event):
    """Background work of the disk (flushes, checkpoints, retention) waits."""

    broker: int
    for_ms: int

    def __str__(self) -> str:
        return f"broker {self.broker} flushes and checkpoints nothing for {self.for_ms} ms"


@dataclass(frozen=True, slots=True)
class Cut(Event):
    """Nothing gets from a to b or back."""

    a: int
    b: int
    for_ms: int

    def __str__(self) -> str:
        return f"no network between {name_of(self.a)} and {name_of(self.b)} for {self.for_ms} ms"


@dataclass(frozen=True, slots=True)
class Lose(Event):
    """The next messages from source to target are lost."""

    source: int
    target: int
    count: int = 1

    def __str__(self) -> str:
        return f"the next {self.count} message(s) from {name_of(self.source)} to {name_of(self.target)} are lost"


@dataclass(frozen=True, slots=True)
class Delay(Event):
    """The next messages from source to target take that much longer, each: later ones overtake them."""

    source: int
    target: int
    by_ms: int
    count: int = 1

    def __str__(self) -> str:
        return (
            f"the next {self.count} message(s) from {name_of(self.source)} to {name_of(self.target)} "
            f"come {self.by_ms} ms late"
        )


@dataclass(frozen=True, slots=True)
class Duplicate(Event):
    """The next messages from source to target arrive a second time, that much later."""

    source: int
    target: int
    after_ms: int
    count: int = 1

    def __str__(self) -> str:
        return (
            f"the next {self.count} message(s) from {name_of(self.source)} to {name_of(self.target)} "
            f"arrive again {self.after_ms} ms later"
        )


# -- of a cluster with the product's controller --------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CreateTopic(Event):
    """Unless there is one of this name, or an earlier one is still being deleted."""

    topic: int

    def __str__(self) -> str:
        return f"topic t{self.topic} is created"


@dataclass(frozen=True, slots=True)
class DeleteTopic(Event):
    topic: int

    def __str__(self) -> str:
        return f"somebody orders to delete topic t{self.topic}"


@dataclass(frozen=True, slots=True)
class PreferredElection(Event):
    partition: int

    def __str__(self) -> str:
        return f"somebody orders the election of the preferred leader of partition {self.partition}"


@dataclass(frozen=True, slots=True)
class Reassign(Event):
    """All partitions of the topic.  is_ordered: in /admin/reassign_partitions, not by a request to the controller."""

    topic: int
    replicas: tuple[int, ...]
    is_ordered: bool = False

    def __str__(self) -> str:
        how = "an order in the store" if self.is_ordered else "a request"
        return f"topic t{self.topic} is to be reassigned to the brokers {list(self.replicas)}, by {how}"


@dataclass(frozen=True, slots=True)
class CancelReassignment(Event):
    topic: int

    def __str__(self) -> str:
        return f"the reassignment of topic t{self.topic} is to be cancelled"


@dataclass(frozen=True, slots=True)
class ExpireSession(Event):
    """The store ends the session of a broker that lives."""

    broker: int

    def __str__(self) -> str:
        return f"the session of broker {self.broker} expires"


@dataclass(frozen=True, slots=True)
class DeleteController(Event):
    """As an operator does who wants another controller: the old one does not know yet."""

    def __str__(self) -> str:
        return "somebody deletes /controller"


@dataclass(frozen=True, slots=True)
class DieInWrite(Event):
    """The broker is killed right after so many further writes to the store, before it can tell anybody."""

    broker: int
    writes: int = 1
    down_ms: int = 1000

    def __str__(self) -> str:
        return f"broker {self.broker} is killed after {self.writes} write(s) to the store, for {self.down_ms} ms"


@dataclass(frozen=True, slots=True)
class ExpireInReads(Event):
    """The session of `victim` ends between two reads of the broker: right after so many further calls of the store."""

    broker: int
    victim: int
    calls: int = 1

    def __str__(self) -> str:
        return f"the session of broker {self.victim} expires after {self.calls} call(s) of the store by {self.broker}"


@dataclass(frozen=True, slots=True)
class LateRequests(Event):
    """Whoever is the controller by then may be another one."""

    broker: int
    by_ms: int
    count: int = 1

    def __str__(self) -> str:
        return f"the next {self.count} request(s) of the controller of broker {self.broker} come {self.by_ms} ms late"


@dataclass(frozen=True, slots=True)
class LoseStoreAnswer(Event):
    """After so many further writes of the broker to the store: the last of them takes place, its answer is lost."""

    broker: int
    writes: int = 1

    def __str__(self) -> str:
        which = "next write" if self.writes == 1 else f"write number {self.writes} from now on"
        return f"broker {self.broker} does not hear whether its {which} to the store took place"


@dataclass(frozen=True, slots=True)
class FlipBit(Event):
    """On the disk of a broker that is down.  topic: of its first partition.  share: which batch of the log.  The index
    of its segment goes too, so that the next start finds the damage."""

    broker: int
    topic: int
    share: float

    def __str__(self) -> str:
        where = f"{self.share:.0%} into the log of t{self.topic}-0"
        return f"a bit flips on the disk of broker {self.broker}, if it is down, {where}"


@dataclass(frozen=True, slots=True)
class RemoveLog(Event):
    """Somebody removes a directory in the data directory of a broker that is down, if its checkpoint says that records
    were there.  topic: of whose first partition."""

    broker: int
    topic: int

    def __str__(self) -> str:
        return f"the log of t{self.topic}-0 is removed from the disk of broker {self.broker}, if it is down"


@dataclass(frozen=True, slots=True)
class DamageRecords(Event):
    """On the disk of a broker that leads the topic's first partition.  share: which of the batches that some
    follower does not have yet.  for_ms: after it the disk returns the right bytes again, unless they were cut off; 0:
    never.
    """

    broker: int
    topic: int
    share: float
    for_ms: int = 0

    def __str__(self) -> str:
        how_long = f"for {self.for_ms} ms" if self.for_ms else "for good"
        where = f"at broker {self.broker}, if it leads, {how_long}"
        return f"a batch of t{self.topic}-0 that a follower lacks is damaged {where}"


@dataclass(frozen=True, slots=True)
class Settings:
    """What a history takes place in.

    latency_ms: of a message that nothing happens to.  fetch_sessions: for how many followers a broker keeps one.
    remembers_idle: sessions know which partitions are idle, as those of many partitions do.  throttled_rate: bytes a
    second that a broker sends to followers, and that it fetches, as long as there are faults; 0 for no limit.
    controller: the product's controller, one in each broker, and a store with sessions; partitions is then the number
    of topics at the start.  rebalance_ms: how often it brings back preferred leaders, 0 for never.
    transactions: coordinators of transactions and of groups in each broker, and clients with transactions.
    transaction_versions: of the clients with one transactional id, in turn; transaction_timeout_ms: of all of these.
    asks_any_broker: who leads a partition they hear from each broker in turn, which may not have heard of an election;
    else from the controller.
    """

    brokers: int = 3
    partitions: int = 1
    min_insync_replicas: int = 1
    unclean: bool = False
    truncates_on_fetch: bool = True
    segment_bytes: int = 1000
    retention_ms: int = -1
    latency_ms: int = 1
    flush_checkpoint_ms: int = 1000
    fetch_bytes: int = 900
    fetch_sessions: int = 10
    remembers_idle: bool = False
    throttled_rate: int = 0
    controller: bool = False
    rebalance_ms: int = 0
    transactions: bool = False
    transaction_versions: tuple[int, ...] = (1,)
    transaction_timeout_ms: int = 3000
    asks_any_broker: bool = False

    def __str__(self) -> str:
        changed = [f for f in fields(self) if getattr(self, f.name) != f.default]
        return f"Settings({', '.join(f'{f.name}={getattr(self, f.name)!r}' for f in changed)})"


@dataclass(frozen=True, slots=True)
class History:
    """seed only names it."""

    settings: Settings
    events: tuple[Event, ...]
    seed: int | None = None

    def with_events(self, events: list[Event]) -> History:
        return History(self.settings, tuple(events), self.seed)

    def __str__(self) -> str:
        return "\n".join([str(self.settings), *(f"{event.at_ms:6d} ms  {event}" for event in self.events)])


Weights = list[tuple[type[Event], int]]


def swarm_weights(seed: int, always: Weights, weights: Weights) -> Weights:
    """The weights of one seed of a swarm: some kinds of events do not happen at all, some are frequent.

    With all kinds in each history, those that need many of one kind and none of another are rare.
    Source: Groce and others, Swarm Testing, 2012.
    """
    random = Random(f"swarm {seed}")
    return [*always, *((kind, weight * random.choice([0, 1, 1, 4])) for kind, weight in weights)]


#: What each history of a swarm has.
_PRODUCES: Weights = [(Produce, 8)]


def random_history(seed: int, *, unclean: bool = False, events: int = 120, swarm: bool = False) -> History:
    """The history of a seed: the same in every process and on every machine.  swarm: see swarm_weights()."""
    random = Random(seed)
    weights = swarm_weights(seed, _PRODUCES, _WEIGHTS) if swarm else _WEIGHTS
    settings = Settings(
        brokers=random.choice([2, 3, 3]),
        partitions=random.choice([1, 2]),
        min_insync_replicas=random.choice([1, 1, 2]),
        unclean=unclean,
        truncates_on_fetch=random.random() < 0.6,
        segment_bytes=random.choice([300, 1000, 100_000]),
        retention_ms=random.choice([-1, -1, -1, 2000]),
        latency_ms=random.choice([1, 1, 3, 10]),
        flush_checkpoint_ms=random.choice([200, 1000, 5000]),
        fetch_bytes=random.choice([300, 900, 5000]),
        fetch_sessions=random.choice([10, 10, 10, 1, 0]),
        remembers_idle=random.random() < 0.5,
        throttled_rate=random.choice([0, 0, 0, 0, 2000]),
    )
    pace_ms = random.choice([5, 20, 60])
    at_ms = 20
    chosen: list[Event] = []
    for _ in range(events):
        at_ms += int(random.expovariate(1 / pace_ms))
        chosen.append(_random_event(random, settings, at_ms, weights))
    return History(settings, tuple(chosen), seed)


def _random_event(random: Random, settings: Settings, at_ms: int, weights: Weights) -> Event:
    brokers = range(settings.brokers)
    partition = random.randrange(settings.partitions)
    broker = random.choice(brokers)
    to = random.choice(brokers) if random.random() < 0.15 else None
    (kind,) = random.choices([kind for kind, _ in weights], [weight for _, weight in weights])
    if kind is Produce:
        records, size = random.randint(1, 3), random.choice([1, 1, 40, 60])
        return Produce(at_ms, partition, records, size, random.choice([-1, -1, -1, 1]), to)
    if kind is ProduceIdempotent:
        return ProduceIdempotent(at_ms, partition, random.randrange(2), random.randint(1, 3))
    if kind is Consume:
        return Consume(at_ms, partition, random.randrange(2), to)
    if kind is DeleteRecords:
        return DeleteRecords(at_ms, partition, round(random.random(), 2))
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
    addresses = [*brokers, *brokers, CONTROLLER, PRODUCER, CONSUMER]
    a = random.choice(brokers)
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


_WEIGHTS: Weights = [
    (Produce, 32),
    (ProduceIdempotent, 12),
    (Consume, 10),
    (DeleteRecords, 3),
    (Elect, 6),
    (NewController, 1),
    (StaleUpdate, 2),
    (Crash, 7),
    (Pause, 2),
    (SlowDisk, 1),
    (Cut, 5),
    (Lose, 6),
    (Delay, 10),
    (Duplicate, 4),
]


def random_controlled_history(seed: int, *, unclean: bool = False, events: int = 100, swarm: bool = False) -> History:
    """The same, of a cluster with the product's controller."""
    random = Random(seed)
    weights = swarm_weights(seed, _PRODUCES, _CONTROLLED_WEIGHTS) if swarm else _CONTROLLED_WEIGHTS
    settings = Settings(
        controller=True,
        brokers=random.choice([2, 3, 3, 4]),
        partitions=random.choice([1, 2]),
        min_insync_replicas=random.choice([1, 1, 2]),
        unclean=unclean,
        segment_bytes=random.choice([300, 1000, 100_000]),
        latency_ms=random.choice([1, 1, 3, 10]),
        flush_checkpoint_ms=random.choice([200, 1000, 5000]),
        remembers_idle=random.random() < 0.5,
        rebalance_ms=random.choice([0, 0, 500]),
    )
    pace_ms = random.choice([10, 40, 150])
    at_ms = 200
    chosen: list[Event] = []
    for _ in range(events):
        at_ms += int(random.expovariate(1 / pace_ms))
        event = _random_controlled_event(random, settings, at_ms, weights)
        chosen.append(event)
        if isinstance(event, Reassign) and random.random() < 0.5:
            # Another word while it runs, or while it ends.
            soon_ms = at_ms + random.choice([1, 5, 15, 40, 100])
            again = Reassign(soon_ms, event.topic, _random_replicas(random, settings))
            chosen.append(random.choice([CancelReassignment(soon_ms, event.topic), again]))
    chosen.sort(key=lambda event: event.at_ms)
    return History(settings, tuple(chosen), seed)


def _random_replicas(random: Random, settings: Settings) -> tuple[int, ...]:
    count = random.randint(1, min(settings.brokers, 3))
    return tuple(random.sample(range(settings.brokers), count))


def _random_controlled_event(random: Random, settings: Settings, at_ms: int, weights: Weights) -> Event:
    brokers = range(settings.brokers)
    broker = random.choice(brokers)
    (kind,) = random.choices([kind for kind, _ in weights], [weight for _, weight in weights])
    if kind is CreateTopic:
        return CreateTopic(at_ms, random.randrange(3))
    if kind is DeleteTopic:
        return DeleteTopic(at_ms, random.randrange(3))
    if kind is PreferredElection:
        return PreferredElection(at_ms, random.randrange(3))
    if kind is Reassign:
        return Reassign(at_ms, random.randrange(3), _random_replicas(random, settings), random.random() < 0.2)
    if kind is CancelReassignment:
        return CancelReassignment(at_ms, random.randrange(3))
    if kind is ExpireSession:
        return ExpireSession(at_ms, broker)
    if kind is DeleteController:
        return DeleteController(at_ms)
    if kind is DieInWrite:
        return DieInWrite(at_ms, broker, random.choice([1, 1, 2, 3, 5]), random.choice([20, 1000, 2500]))
    if kind is LateRequests:
        return LateRequests(at_ms, broker, random.choice([20, 300, 1000]), random.choice([1, 3, 6]))
    if kind is LoseStoreAnswer:
        return LoseStoreAnswer(at_ms, broker, random.choice([1, 1, 2, 3, 5]))
    if kind is FlipBit:
        return FlipBit(at_ms, broker, random.randrange(3), round(random.random(), 2))
    if kind is DamageRecords:
        return DamageRecords(at_ms, broker, random.randrange(3), round(random.random(), 2), 6000)
    if kind is Crash:
        how = random.choice(["loses power", "is killed", "is killed", "stops", "stops"])
        down_ms, noticed_ms = random.choice([20, 300, 2500, 60_000]), random.choice([10, 200, 600])
        return Crash(at_ms, broker, how, down_ms, noticed_ms, random.choice([0.0, round(random.random(), 2)]))
    if kind is Pause:
        return Pause(at_ms, broker, random.choice([20, 200, 800, 2000]))
    if kind in (Cut, Lose, Delay, Duplicate):
        a = random.choice(brokers)
        b = random.choice([address for address in [*brokers, *brokers, STORE, STORE, ADMIN] if address != a])
        if kind is Cut:
            return Cut(at_ms, a, b, random.choice([30, 300, 1500]))
        if random.random() < 0.5 or b == STORE:
            a, b = b, a
        count = random.choice([1, 1, 3])
        if kind is Lose:
            return Lose(at_ms, a, b, count)
        if kind is Delay:
            return Delay(at_ms, a, b, random.choice([3, 15, 100, 1000]), count)
        return Duplicate(at_ms, a, b, random.choice([1, 20, 500]), count)
    partition = random.randrange(settings.partitions + 1)
    if kind is Produce:
        return Produce(at_ms, partition, random.randint(1, 3), random.choice([1, 1, 40]), random.choice([-1, -1, 1]))
    if kind is ProduceIdempotent:
        return ProduceIdempotent(at_ms, partition, random.randrange(2), random.randint(1, 3))
    if kind is Consume:
        return Consume(at_ms, partition, random.randrange(2))
    return DeleteRecords(at_ms, partition, round(random.random(), 2))


_CONTROLLED_WEIGHTS: Weights = [
    (Produce, 26),
    (ProduceIdempotent, 10),
    (Consume, 8),
    (DeleteRecords, 2),
    (CreateTopic, 6),
    (DeleteTopic, 5),
    (PreferredElection, 4),
    (Reassign, 10),
    (CancelReassignment, 3),
    (ExpireSession, 3),
    (DeleteController, 2),
    (DieInWrite, 5),
    (LateRequests, 6),
    (LoseStoreAnswer, 3),
    (Crash, 7),
    (FlipBit, 8),
    (DamageRecords, 8),
    (Pause, 4),
    (Cut, 6),
    (Lose, 6),
    (Delay, 10),
    (Duplicate, 6),
]
