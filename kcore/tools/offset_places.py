"""Places in a log as a command line names them: earliest, latest, an offset or a time."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

import click

from kcore.client.group_client import EARLIEST, LATEST, GroupClient
from kcore.common.moments import MOMENT_HELP, moment_ms
from kcore.common.time import SYSTEM_TIME
from kcore.common.topic_partition import TopicPartition
from kcore.errors import BrokerNotAvailable

MAX_OFFSET = (1 << 63) - 1
_RETRY_MS = 200

#: For --help.
TIME_HELP = f"a time: {MOMENT_HELP}"


class Place(NamedTuple):
    """offset: that one.  timestamp: the first record of at least so many ms, or EARLIEST or LATEST."""

    offset: int | None = None
    timestamp: int = LATEST


def place(text: str) -> Place:
    """ "earliest", "latest", an offset or a time.  Raises click.BadParameter."""
    if text in ("earliest", "beginning"):
        return Place(timestamp=EARLIEST)
    if text in ("latest", "end"):
        return Place(timestamp=LATEST)
    if text.isdecimal() and int(text) <= MAX_OFFSET:
        return Place(offset=int(text))
    try:
        return Place(timestamp=time_ms(text))
    except ValueError:
        raise click.BadParameter(f"{text!r}: expected earliest, latest, an offset or {TIME_HELP}") from None


def time_ms(text: str) -> int:
    """As moment_ms(), by the system's clock."""
    return moment_ms(text, SYSTEM_TIME.milliseconds())


def offsets_of(
    client: GroupClient, places: Mapping[TopicPartition, Place], timeout_s: float, isolation_level: int = 0
) -> dict[TopicPartition, int]:
    """The offset of each place; the end of the log for a time after all records.  Raises as listed()."""
    offsets = {tp: place.offset for tp, place in places.items() if place.offset is not None}
    asked = {tp: place.timestamp for tp, place in places.items() if place.offset is None}
    offsets |= listed(client, asked, timeout_s, isolation_level)
    late = [tp for tp, offset in offsets.items() if offset < 0]
    return offsets | listed(client, dict.fromkeys(late, LATEST), timeout_s, isolation_level)


def listed(
    client: GroupClient, timestamps: Mapping[TopicPartition, int], timeout_s: float, isolation_level: int = 0
) -> dict[TopicPartition, int]:
    """As GroupClient.listed_offsets(), asked again while a leader is away.

    Raises BrokerNotAvailable when one is away for timeout_s, and OSError where no broker answers.
    """
    deadline_ms = SYSTEM_TIME.hi_res_clock_ms() + timeout_s * 1000
    offsets: dict[TopicPartition, int] = {}
    while missing := {tp: at for tp, at in timestamps.items() if tp not in offsets}:
        problem = None
        for tp, end in client.listed_offsets(missing, isolation_level).items():
            if end.offset is None:
                problem = problem or f"{tp}: its offsets are not known: {end.problem}"
            else:
                offsets[tp] = end.offset
        if problem is not None:
            if SYSTEM_TIME.hi_res_clock_ms() + _RETRY_MS > deadline_ms:
                raise BrokerNotAvailable(problem)
            SYSTEM_TIME.sleep(_RETRY_MS)
    return offsets


def log_starts(client: GroupClient, tps: Collection[TopicPartition], timeout_s: float) -> dict[TopicPartition, int]:
    """The first offset of each log.  Raises as listed()."""
    return listed(client, dict.fromkeys(tps, EARLIEST), timeout_s)
