"""Disk faults on demand: a full disk, an append that breaks off, a flipped bit, a slow or lost fsync."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, Self

from kcore.common import file
from kcore.common.topic_partition import TopicPartition
from kcore.errors import OffsetOutOfRange, UnknownTopicOrPartition
from kcore.server.broker import Broker
from kcore.testing.waits import Wait

#: The name of a segment ends so.  An index gets its first page with the first append.
_RECORDS = ".log"
_SYNCS: tuple[file.Call, ...] = ("fsync", "msync")


#: What becomes of some calls: put(prefix, times) begins it for paths that begin with prefix, for so many calls (-1:
#: all), and returns its id.
Rule = Callable[[str, int], int]


class Place(NamedTuple):
    """A directory of a broker.  prefix: the paths of those of its files that a fault is for begin so."""

    broker: Broker
    directory: str
    prefix: str


class DiskFault:
    """From the call that made it to the end of its `with` block, to end(), or until it has hit `times` calls.

    Where several fit a call, the one that was made last hits it.  Thread-safe.
    """

    #: Those that have not ended: faults are of the process.
    _active: ClassVar[set[DiskFault]] = set()

    def __init__(self, rules: Sequence[Rule], places: Sequence[Place], times: int | None) -> None:
        """Raises ValueError, and nothing is left of it, where that is too many faults at once."""
        count = -1 if times is None else times
        self._hits = 0
        self._active.add(self)
        #: Of each rule, the ids of its faults, one for each place.
        self._ids: list[list[int]] = []
        try:
            for put in rules:
                self._ids.append([])
                for place in places:
                    self._ids[-1].append(put(place.prefix, count))
        except BaseException:
            self.end()
            raise

    @property
    def hits(self) -> int:
        """How many system calls it has hit."""
        return self._hits or sum(map(file.fault_hits, self._ids[0]))

    def wait_for_hits(self, count: int = 1, timeout: float = 30) -> None:
        """Raises WaitTimedOut with their number after `timeout` seconds."""
        Wait(
            lambda: self.hits >= count, f"{count} system calls that the fault hits", lambda: f"it has hit {self.hits}"
        ).run(timeout)

    def end(self) -> None:
        """The disk works again."""
        if self not in self._active:
            return
        self._active.remove(self)
        hits = [sum(map(file.end_fault, ids)) for ids in self._ids]
        self._hits = hits[0] if hits else 0
        if not self._active:
            file.clear_faults()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()


class LostSyncs(DiskFault):
    """A disk that says that it has written what is still in its cache."""

    def __init__(self, places: Sequence[Place], times: int | None) -> None:
        self._brokers = [place.broker for place in places]
        self._copies: dict[str, str] = {}
        try:
            for place in places:
                self._copies[place.directory] = tempfile.mkdtemp(prefix="kcore-disk-")
                _copy_directory(place.directory, self._copies[place.directory])
            super().__init__(lost_fsync(), places, times)
        except BaseException:
            self._remove_copies()
            raise

    def lose_power(self) -> None:
        """Have the files again that were there when the fault began: nothing that came later has reached the disk.

        Raises RuntimeError unless the brokers are down: kill them first.
        """
        for broker in self._brokers:
            if not broker.has_stopped:
                raise RuntimeError(f"broker {broker.broker_id} runs: kill it before its disk loses power")
        for directory, copy in self._copies.items():
            shutil.rmtree(directory)
            _copy_directory(copy, directory)
        for broker in self._brokers:
            broker.running.base.logs.record_failed_machine()

    def end(self) -> None:
        super().end()
        self._remove_copies()

    def _remove_copies(self) -> None:
        for copy in self._copies.values():
            shutil.rmtree(copy, ignore_errors=True)


class FlippedOnDisk(DiskFault):
    """A bit of one batch that is read wrong; at the end it is right again.

    bytes_of_batches: path -> position of the byte.
    """

    def __init__(self, bytes_of_batches: Mapping[str, int]) -> None:
        self._bytes: dict[str, int] = {}
        super().__init__([], [], None)
        try:
            for path, position in bytes_of_batches.items():
                _flip(path, position)
                self._bytes[path] = position
        except BaseException:
            self.end()
            raise

    @property
    def hits(self) -> int:
        raise RuntimeError("nobody counts how often a damaged batch is read")

    def end(self) -> None:
        for path, position in self._bytes.items():
            if os.path.exists(path):
                _flip(path, position)
        self._bytes.clear()
        super().end()


def failing(calls: file.Call, error: int, after_bytes: int = 0, ending: str = "") -> Rule:
    def put(prefix: str, times: int) -> int:
        return file.fail_next(calls, error, after_bytes=after_bytes, times=times, under=prefix, ending=ending)

    return put


def full_disk() -> list[Rule]:
    return [failing("pwrite", errno.ENOSPC)]


def torn_append(after_bytes: int) -> list[Rule]:
    """Of the next append so many bytes are written; then the disk fails, and what is there cannot be cut off."""
    return [failing("pwrite", errno.EIO, after_bytes, _RECORDS), failing("ftruncate", errno.EIO)]


def flipped_append() -> list[Rule]:
    return [lambda prefix, times: file.spoil_next("pwrite", "flip", times=times, under=prefix, ending=_RECORDS)]


def slow_fsync(seconds: float) -> list[Rule]:
    wait_ms = round(seconds * 1000)
    return [lambda prefix, times: file.spoil_next(_SYNCS, "wait", wait_ms=wait_ms, times=times, under=prefix)]


def lost_fsync() -> list[Rule]:
    return [lambda prefix, times: file.spoil_next(_SYNCS, "lose", times=times, under=prefix)]


def places_of(broker: Broker, tp: TopicPartition | None, data_dir: str | None) -> list[Place]:
    """The segments of a partition, none if the broker has not got it; or one data directory, or all.

    Raises ValueError for a data directory that the broker does not have.
    """
    logs = broker.running.base.logs
    # Paths are compared with those of open files, which the system gives without symbolic links.
    if tp is not None:
        log = logs.get_log(tp)
        directory = None if log is None else os.path.realpath(log.directory)
        # The names of segments and their indexes are offsets of 20 digits; checkpoints have others.
        return [] if directory is None else [Place(broker, directory, f"{directory}/0")]
    dirs = logs.live_log_dirs
    if data_dir is not None and os.path.abspath(data_dir) not in dirs:
        raise ValueError(f"{data_dir} is no data directory of broker {broker.broker_id}: it has {', '.join(dirs)}")
    directories = [os.path.realpath(path) for path in (dirs if data_dir is None else [data_dir])]
    return [Place(broker, directory, f"{directory}/") for directory in directories]


def _partition_of(brokers: Sequence[Broker], topic: str, partition: int | None) -> TopicPartition:
    """Without a number the topic's only one on these brokers.  Raises ValueError if there are several."""
    if partition is None:
        there = {log.topic_partition for broker in brokers for log in broker.running.base.logs.all_logs()}
        numbers = sorted(tp.partition for tp in there if tp.topic == topic)
        if len(numbers) > 1:
            raise ValueError(f"{topic} has {len(numbers)} partitions: say in which one the disk fails, partition=0 say")
        partition = next(iter(numbers), 0)
    return TopicPartition(topic, partition)


def byte_of_batch(broker: Broker, tp: TopicPartition, offset: int) -> tuple[str, int] | None:
    """The file and the position of the last byte of the batch with this offset; None if it has not the partition.

    Raises OffsetOutOfRange.
    """
    log = broker.running.base.logs.get_log(tp)
    if log is None:
        return None
    if not log.log_start_offset <= offset < log.log_end_offset:
        held = f"[{log.log_start_offset}, {log.log_end_offset})"
        raise OffsetOutOfRange(f"{tp}: no batch has offset {offset}, the log holds {held}")
    batch: Any = log.read(offset, 1, min_one_message=True).records  # a slice of the segment's file
    return batch.path, batch.position + batch.size_in_bytes - 1


def _flip(path: str, position: int) -> None:
    with open(path, "r+b", buffering=0) as damaged:
        damaged.seek(position)
        (byte,) = damaged.read(1)
        damaged.seek(position)
        damaged.write(bytes([byte ^ 1]))


def _copy_directory(source: str, target: str) -> None:
    shutil.copytree(source, target, dirs_exist_ok=True, copy_function=_copy_sparse)


def _copy_sparse(source: str, target: str) -> None:
    """Indexes are mostly holes of 10 MB."""
    with open(source, "rb") as old, open(target, "wb") as new:
        size = os.fstat(old.fileno()).st_size
        position = 0
        while position < size:
            try:
                start = os.lseek(old.fileno(), position, os.SEEK_DATA)
            except OSError:  # ENXIO: only a hole is left
                break
            position = os.lseek(old.fileno(), start, os.SEEK_HOLE)
            os.pwrite(new.fileno(), os.pread(old.fileno(), position - start, start), start)
        os.truncate(new.fileno(), size)


class How(NamedTuple):
    """Details of a fault; None where it takes none.  after_bytes: of torn_append; offset: of flipped_read; seconds: of
    slow_fsync."""

    after_bytes: int | None
    offset: int | None
    seconds: float | None


def make_disk_fault(
    kind: str,
    brokers: Sequence[Broker],
    topic: str | None,
    partition: int | None,
    data_dir: str | None,
    how: How,
    times: int | None,
) -> DiskFault:
    """KafkaTestSupport.disk_fault() says what they mean, and what this raises."""
    _check_arguments(kind, topic, data_dir, how, times)
    tp = None if topic is None else _partition_of(brokers, topic, partition)
    if kind == "flipped_read":
        assert tp is not None and how.offset is not None
        found = [byte_of_batch(broker, tp, how.offset) for broker in brokers]
        if not any(found):
            raise UnknownTopicOrPartition(f"{tp}: no running broker of the fault has it")
        return FlippedOnDisk(dict(byte for byte in found if byte is not None))
    places = [place for broker in brokers for place in places_of(broker, tp, data_dir)]
    if not places:
        raise UnknownTopicOrPartition(f"{tp}: no running broker of the fault has it")
    if kind == "lost_fsync":
        return LostSyncs(places, times)
    return DiskFault(_rules(kind, how), places, times)


def _rules(kind: str, how: How) -> list[Rule]:
    if kind == "full":
        return full_disk()
    if kind == "torn_append":
        return torn_append(10 if how.after_bytes is None else how.after_bytes)
    if kind == "flipped_write":
        return flipped_append()
    assert how.seconds is not None
    return slow_fsync(how.seconds)


#: Kind of fault -> the details that it takes.
_KINDS = {
    "full": (),
    "torn_append": ("after_bytes",),
    "flipped_write": (),
    "flipped_read": ("offset",),
    "slow_fsync": ("seconds",),
    "lost_fsync": (),
}


def _check_arguments(kind: str, topic: str | None, data_dir: str | None, how: How, times: int | None) -> None:
    """Raises ValueError."""
    if kind not in _KINDS:
        raise ValueError(f"no disk fault {kind!r}: expected one of {', '.join(_KINDS)}")
    for name, value in how._asdict().items():
        if value is not None and name not in _KINDS[kind]:
            raise ValueError(f"{name} is not for {kind}")
        if value is not None and value < 0:
            raise ValueError(f"{name}={value}: expected 0 or more")
    if kind == "flipped_read" and (how.offset is None or topic is None):
        raise ValueError("flipped_read needs a topic and an offset")
    if kind == "slow_fsync" and how.seconds is None:
        raise ValueError("slow_fsync needs seconds")
    if topic is not None and data_dir is not None:
        raise ValueError("give a topic or data_dir")
    if times is not None and (kind == "flipped_read" or times < 1):
        raise ValueError(
            f"times={times}: " + ("flipped_read lasts until its end" if times >= 1 else "expected 1 or more")
        )
