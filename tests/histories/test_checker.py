"""A correct history has no findings; each way of not being it has its own."""

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.histories.checker import LEGAL, Anomaly, Assign, Kind, Operation, Poll, Rebalance, Send, check
from tests.histories.model_log import ModelLog

OK, FAIL, INFO = Kind.OK, Kind.FAIL, Kind.INFO


def poll(partition, *records):
    return Poll({partition: records})


def history(*operations):
    """Each is (process, kind, action...); one ends before the next begins."""
    times = enumerate(operations)
    return [Operation(who, kind, actions, 2 * at, 2 * at + 1) for at, (who, kind, *actions) in times]


def anomalies(*operations):
    return {finding.anomaly for finding in check(history(*operations))}


A, B, C = ("a", OK, Send("p", "x", 0)), ("a", OK, Send("p", "y", 1)), ("a", OK, Send("p", "z", 2))
ALL = poll("p", (0, "x"), (1, "y"), (2, "z"))
READ = ("r", OK, ALL)

#: What is planted, and everything that is found.
PLANTED = {
    "another value at an offset that was acknowledged": (
        [A, ("r", OK, poll("p", (0, "w"))), ("b", INFO, Send("p", "w"))],
        {Anomaly.INCONSISTENT_OFFSET, Anomaly.FUTURE_READ},
    ),
    "two readers see two values at one offset": (
        [("a", INFO, Send("p", "x")), ("b", INFO, Send("p", "y"))]
        + [("r", OK, poll("p", (0, "x"))), ("s", OK, poll("p", (0, "y")))],
        {Anomaly.INCONSISTENT_OFFSET},
    ),
    "a record from nowhere": ([("r", OK, poll("p", (0, "x")))], {Anomaly.UNWRITTEN_READ}),
    "a record of an aborted transaction": (
        [("a", FAIL, Send("p", "x", 0)), ("r", OK, poll("p", (0, "x")))],
        {Anomaly.ABORTED_READ},
    ),
    "a record of an aborted transaction without its offset": (
        [("a", FAIL, Send("p", "x")), ("r", OK, poll("p", (0, "x")))],
        {Anomaly.ABORTED_READ},
    ),
    "an aborted record whose value was sent again and committed": (
        [("a", FAIL, Send("p", "x", 0)), ("a", OK, Send("p", "x", 2)), ("r", OK, poll("p", (0, "x"), (2, "x")))],
        {Anomaly.ABORTED_READ, Anomaly.DUPLICATE},
    ),
    "its own record": (
        [("a", OK, Send("p", "x", 0), poll("p", (0, "x")))],
        {Anomaly.PRECOMMITTED_READ},
    ),
    "a record that is written later": (
        [("r", OK, poll("p", (0, "x"))), ("a", OK, Send("p", "x", 0))],
        {Anomaly.FUTURE_READ},
    ),
    "an acknowledged record that nobody reads": (
        [A, B, ("r", OK, poll("p", (1, "y")))],
        {Anomaly.LOST_WRITE},
    ),
    "one record of a transaction that another one proves": (
        [
            ("a", INFO, Send("p", "x", 0), Send("q", "x", 0)),
            ("b", OK, Send("q", "y", 2)),
            ("r", OK, poll("p", (0, "x"))),
        ]
        + [("s", OK, poll("q", (2, "y")))],
        {Anomaly.LOST_WRITE},
    ),
    "an acknowledged record after the last that is read": ([A, B, ("r", OK, poll("p", (0, "x")))], {Anomaly.UNSEEN}),
    "an acknowledged record without an offset": ([("a", OK, Send("p", "x"))], {Anomaly.UNSEEN}),
    "a log without a record that was read": (
        [A, B, ("r", OK, poll("p", (0, "x"), (1, "y"))), ("log", OK, Poll({"p": [(0, "x")]}, is_whole=True))],
        {Anomaly.VANISHED},
    ),
    "a record twice": (
        [A, ("r", OK, poll("p", (0, "x"), (1, "x")))],
        {Anomaly.DUPLICATE},
    ),
    "a gap in a poll": ([A, B, C, READ, ("s", OK, poll("p", (0, "x"), (2, "z")))], {Anomaly.INTERNAL_SKIPPED_POLL}),
    "a gap between polls": (
        [A, B, C, READ, ("s", OK, poll("p", (0, "x"))), ("s", OK, poll("p", (2, "z")))],
        {Anomaly.SKIPPED_POLL},
    ),
    "a poll that goes back": (
        [A, B, READ[:2] + (poll("p", (0, "x"), (1, "y"), (0, "x")),)],
        {Anomaly.INTERNAL_NONMONOTONIC_POLL},
    ),
    "polls that go back": (
        [A, B, ("r", OK, poll("p", (0, "x"), (1, "y"))), ("r", OK, poll("p", (1, "y")))],
        {Anomaly.NONMONOTONIC_POLL},
    ),
    "polls that go on where an aborted transaction ended": (
        [
            A,
            B,
            C,
            READ,
            ("s", OK, poll("p", (0, "x"))),
            ("s", FAIL, poll("p", (1, "y"))),
            ("s", OK, poll("p", (2, "z"))),
        ],
        {Anomaly.SKIPPED_POLL},
    ),
    "records of a transaction in another order": (
        [("a", OK, Send("p", "y", 1), Send("p", "x", 0)), ("r", OK, poll("p", (0, "x"), (1, "y")))],
        {Anomaly.INTERNAL_NONMONOTONIC_SEND},
    ),
    "records of a producer in another order": (
        [("a", OK, Send("p", "y", 1)), ("a", OK, Send("p", "x", 0)), ("r", OK, poll("p", (0, "x"), (1, "y")))],
        {Anomaly.NONMONOTONIC_SEND, Anomaly.REALTIME_SEND},
    ),
    "a record after one that was sent later": (
        [("a", OK, Send("p", "y", 1)), ("b", OK, Send("p", "x", 0)), ("r", OK, poll("p", (0, "x"), (1, "y")))],
        {Anomaly.REALTIME_SEND},
    ),
}


@pytest.mark.parametrize("planted", PLANTED)
def test_each_anomaly_is_found_and_no_other(planted):
    operations, expected = PLANTED[planted]
    assert anomalies(*operations) == expected


X, Y = Send("p", "x", 0), Send("q", "y", 0)
#: Of operations that overlap.
CYCLES = {
    Anomaly.READ_CYCLE: [
        ("a", OK, X, poll("q", (0, "y"))),
        ("b", OK, Y, poll("p", (0, "x"))),
    ],
    Anomaly.WRITE_CYCLE: [
        ("a", OK, X, Send("q", "z", 1)),
        ("b", OK, Y, Send("p", "w", 1)),
        ("r", OK, Poll({"p": [(0, "x"), (1, "w")], "q": [(0, "y"), (1, "z")]})),
    ],
    Anomaly.WRITE_READ_CYCLE: [
        ("a", OK, X, poll("q", (0, "y"))),
        ("b", OK, Y, Send("p", "w", 1)),
        ("r", OK, poll("p", (0, "x"), (1, "w"))),
    ],
    Anomaly.ANTI_DEPENDENCY_CYCLE: [
        ("a", OK, Send("p", "x", 1), poll("q", (0, "y"))),
        ("b", OK, Send("q", "z", 1), poll("p", (0, "w"))),
        ("c", OK, Send("p", "w", 0)),
        ("d", OK, Send("q", "y", 0)),
        ("e", OK, Poll({"p": [(0, "w"), (1, "x")], "q": [(0, "y"), (1, "z")]})),
    ],
}


@pytest.mark.parametrize("anomaly", CYCLES)
def test_each_kind_of_cycle_is_found(anomaly):
    together = [replace(operation, invoked=0, completed=1) for operation in history(*CYCLES[anomaly])]
    (finding,) = [finding for finding in check(together, legal=()) if finding.anomaly in CYCLES]
    assert finding.anomaly is anomaly
    assert {operation.process for operation in finding.operations} >= {"a", "b"}
    assert (check(together) == []) == (anomaly in LEGAL)


def test_a_finding_names_the_operations_that_prove_it():
    operations = history(("a", FAIL, Send("p", "x", 0)), ("r", OK, poll("p", (0, "x"))))
    (finding,) = check(operations)
    assert finding.operations == (operations[1], operations[0])
    assert str(finding).startswith("a record of an operation that did not take place was read: p@0, 'x'\n  Operation(")


CLEAN = {
    "polls with gaps of markers and aborted records": [
        ("a", OK, Send("p", "x", 0)),
        ("a", FAIL, Send("p", "y", 2)),
        ("a", OK, Send("p", "z", 5)),
        ("r", OK, poll("p", (0, "x"), (5, "z"))),
    ],
    "a value that was aborted and is sent again": [
        ("a", FAIL, Send("p", "x", 0)),
        ("a", OK, Send("p", "x", 2)),
        ("r", OK, poll("p", (2, "x"))),
    ],
    "a value that was aborted, and sent again, without an offset": [
        ("a", FAIL, Send("p", "x")),
        ("a", INFO, Send("p", "x")),
        ("r", OK, poll("p", (2, "x"))),
    ],
    "an operation of unknown end that did not take place": [
        ("a", INFO, Send("p", "x", 0)),
        ("a2", OK, Send("p", "y", 2)),
        ("r", OK, poll("p", (2, "y"))),
    ],
    "a log to which records are added": [
        A,
        ("log", OK, Poll({"p": [(0, "x")]}, is_whole=True)),
        B,
        ("log", OK, Rebalance(["p"]), Poll({"p": [(0, "x"), (1, "y")]}, is_whole=True)),
    ],
    "a rebalance that sends a consumer back": [
        *(A, B),
        ("r", OK, poll("p", (0, "x"), (1, "y"))),
        ("r", OK, Rebalance(["p"]), poll("p", (0, "x"), (1, "y"))),
    ],
    "a partition that a consumer gives up and gets again": [
        *(A, B),
        ("r", OK, poll("p", (0, "x"), (1, "y"))),
        ("r", OK, Assign(["q"])),
        ("r", OK, Assign(["p", "q"]), poll("p", (0, "x"), (1, "y"))),
    ],
    "a transaction that begins again where an aborted one began": [
        *(A, B),
        ("r", OK, poll("p", (0, "x"))),
        ("r", FAIL, poll("p", (1, "y"))),
        ("r", OK, poll("p", (1, "y"))),
    ],
    "a consumer that begins in the middle": [A, B, C, READ, ("s", OK, poll("p", (1, "y"), (2, "z")))],
}


@pytest.mark.parametrize("name", CLEAN)
def test_what_a_correct_cluster_does_is_not_found(name):
    assert anomalies(*CLEAN[name]) == set()


def test_a_partition_that_stays_assigned_keeps_its_position():
    back = [("r", OK, Assign(["p", "q"])), ("r", OK, poll("p", (0, "x")))]
    assert anomalies(A, ("r", OK, poll("p", (0, "x"))), *back) == {Anomaly.NONMONOTONIC_POLL}


@given(st.integers(0, 1 << 30), st.integers(1, 5))
def test_a_random_history_of_a_correct_cluster_has_no_findings(seed, clients):
    assert check(ModelLog(seed, clients).run()) == []


# -- one change of a correct history --------------------------------------------------------------------


def changed(operation, index, action):
    actions = list(operation.actions)
    actions[index] = action
    return replace(operation, actions=actions)


def without_record(operation, place):
    """Its polls without the record of a place."""
    partition, offset = place
    for index, action in enumerate(operation.actions):
        if isinstance(action, Poll) and partition in action.records:
            left = [record for record in action.records[partition] if record[0] != offset]
            operation = changed(operation, index, Poll({**action.records, partition: left}))
    return operation


def acknowledged_reads(operations):
    """((partition, offset), value) of records that were acknowledged with their offset and read, in order."""
    sent = {(send.partition, send.offset) for o in operations if o.kind is OK for send in o.sends}
    return sorted({read for o in operations for read in o.polled if read[0] in sent})


def lose(operations, rng):
    """One that is not the last of its partition."""
    reads = [place for place, _ in acknowledged_reads(operations)]
    place = rng.choice([place for place in reads if any(o[0] == place[0] and o[1] > place[1] for o in reads)])
    return [without_record(operation, place) for operation in operations]


def alter(operations, rng):
    place, value = rng.choice(acknowledged_reads(operations))
    number = rng.choice([at for at, operation in enumerate(operations) if (place, value) in operation.polled])
    partition, offset = place
    for index, action in enumerate(operations[number].actions):
        if isinstance(action, Poll) and (offset, value) in action.records.get(partition, ()):
            records = [(at, "other" if at == offset else was) for at, was in action.records[partition]]
            operation = changed(operations[number], index, Poll({**action.records, partition: records}))
    return [*operations[:number], operation, *operations[number + 1 :]]


def abort(operations, rng):
    place, _ = rng.choice(acknowledged_reads(operations))
    return [
        replace(operation, kind=FAIL) if any(place == (s.partition, s.offset) for s in operation.sends) else operation
        for operation in operations
    ]


def last_reader_polls(operations):
    """The history without the polls of the last reader, and all their records by partition."""
    last = operations[-1].process
    records = {}
    for operation in operations:
        if operation.process == last:
            for (partition, offset), value in operation.polled:
                records.setdefault(partition, []).append((offset, value))
    kept = [operation for operation in operations if operation.process != last]
    return kept, records, lambda records: Operation(last, OK, [Poll(records)], 1 << 40, 1 << 41)


def skip(operations, rng):
    _, records, read = last_reader_polls(operations)
    partition = rng.choice([partition for partition, found in records.items() if len(found) > 2])
    del records[partition][rng.randrange(1, len(records[partition]) - 1)]
    # Another reader has it all.
    return [*operations, replace(read(records), process="another")]


def turn_back(operations, rng):
    kept, records, read = last_reader_polls(operations)
    partition = rng.choice([partition for partition, found in records.items() if len(found) > 1])
    at = rng.randrange(1, len(records[partition]))
    found = records[partition]
    found[at - 1], found[at] = found[at], found[at - 1]
    return [*kept, read(records)]


def double(operations, rng):
    kept, records, read = last_reader_polls(operations)
    partition = rng.choice(sorted(records))
    offset, value = records[partition][-1]
    records[partition].append((offset + 1000, value))
    return [*kept, read(records)]


def read_early(operations, rng):
    """A transaction reads what it has written."""
    place, value = rng.choice(acknowledged_reads(operations))
    partition, offset = place
    return [
        replace(operation, actions=[*operation.actions, Poll({partition: [(offset, value)]})])
        if any(place == (send.partition, send.offset) for send in operation.sends)
        else operation
        for operation in operations
    ]


def forget_the_end(operations, rng):
    places = [place for place, _ in acknowledged_reads(operations)]
    partition = rng.choice(places)[0]
    last = max(place for place in places if place[0] == partition)
    later = {p for o in operations for p, _ in o.polled if p[0] == partition and p >= last}
    for place in later:
        operations = [without_record(operation, place) for operation in operations]
    return operations


MUTATIONS = {
    lose: Anomaly.LOST_WRITE,
    alter: Anomaly.INCONSISTENT_OFFSET,
    abort: Anomaly.ABORTED_READ,
    skip: Anomaly.INTERNAL_SKIPPED_POLL,
    turn_back: Anomaly.INTERNAL_NONMONOTONIC_POLL,
    double: Anomaly.DUPLICATE,
    read_early: Anomaly.PRECOMMITTED_READ,
    forget_the_end: Anomaly.UNSEEN,
}


@pytest.mark.parametrize("mutation", MUTATIONS)
@given(seed=st.integers(0, 1 << 30))
def test_one_change_of_a_correct_history_is_found(mutation, seed):
    operations = ModelLog(seed, operations=15).run()
    found = {finding.anomaly for finding in check(mutation(operations, random.Random(seed)))}
    assert MUTATIONS[mutation] in found
