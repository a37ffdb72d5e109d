"""The journal of a bulk load (`kcore-load-journal` in a data directory): a load in it is finished, even after a crash.

kcore.bulk.bulk_commit writes it when all new segments are on the disk as `.cleaned` files.  Every loader removes
`.cleaned` files, so the next process that opens the directory must finish the load before it loads a log.  LogManager
and open_log() do that with finish_interrupted_load(); for them this module is in log/, below kcore.bulk.  The steps are

1. partitions that were made whole in the staging directory get their names; `.cleaned` becomes `.swap`, the segment
   with the lowest offset last, so that every loader, Kafka's too, takes all of a partition's new segments or none;
2. the logs are opened and closed as by a broker, which gives the segments their final names;
3. checkpoints, the number of a stream's batch (`kcore-load-streams`) and the marker of a clean stop are written; the
   journal and the staging directory are removed.

Each step may be repeated.  Both files are JSON after a line with its CRC-32C.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from typing import Any, TypeVar

from kcore.common.file import (
    File,
    exists,
    is_directory,
    read_file,
    remove_tree,
    rename,
    sync_path,
    unlink_if_there,
    write_atomically,
)
from kcore.common.text import plain_error
from kcore.common.topic_partition import TopicPartition
from kcore.errors import CorruptFile
from kcore.log.clean_shutdown import remove_clean_shutdown, was_clean_shutdown, write_clean_shutdown
from kcore.log.log_config import LogConfig
from kcore.log.log_dir import LogDir
from kcore.log.log_file_names import (
    CLEANED_SUFFIX,
    LOG_SUFFIX,
    OFFSET_INDEX_SUFFIX,
    SWAP_SUFFIX,
    TIME_INDEX_SUFFIX,
    parse_partition_directory,
    segment_file,
)
from kcore.log.log_loader import load_log
from kcore.record.crc32c import crc32c

logger = logging.getLogger(__name__)

JOURNAL_FILE = "kcore-load-journal"
STREAMS_FILE = "kcore-load-streams"
#: In this order a segment's files are renamed: a segment is there once its .log is.
SEGMENT_SUFFIXES = (OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX, LOG_SUFFIX)
_VERSION = 1
_THREADS = 8

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


@dataclass
class LoadJournal:
    """What a load does; by the names of directories in the data directory."""

    staging: str
    #: Whether all other logs are in order, and the broker epoch that the marker of the clean stop had.
    clean: bool
    broker_epoch: int
    stream: Sequence[Any] | None = None
    #: Directories that others take the place of: (from, to).
    aside: list[Sequence[str]] = field(default_factory=list)
    #: Partitions that are made whole, in the staging directory.
    made: list[str] = field(default_factory=list)
    #: Of partitions that existed before: base offset and size of each new segment.
    segments: dict[str, list[Sequence[int]]] = field(default_factory=dict)
    #: Where each partition ended and will end.
    ends: dict[str, Sequence[int]] = field(default_factory=dict)
    version: int = _VERSION


def finish_interrupted_load(data_dir: str) -> None:
    """Finish the load in the journal, if there is one; the caller holds the directory's lock.

    Raises CorruptFile if another broker has opened the directory meanwhile and removed a part of the load; OSError.
    """
    journal = read_journal(data_dir)
    if journal is None:
        return
    logger.warning("%s: finishing a load that was interrupted", data_dir)
    # The journal says whether the other logs were stopped cleanly before the crash, but another process may have opened
    # them since.
    journal.clean = was_clean_shutdown(data_dir)
    remove_clean_shutdown(data_dir)
    apply_journal(data_dir, journal)


def apply_journal(data_dir: str, journal: LoadJournal) -> None:
    """Do what the journal says; any of its steps may have been done before.  Raises CorruptFile, OSError."""
    for name, aside in journal.aside:
        source, target = os.path.join(data_dir, name), os.path.join(data_dir, aside)
        if exists(source) and not exists(target):
            rename(source, target)
    for name in journal.made:
        source, target = os.path.join(data_dir, journal.staging, "made", name), os.path.join(data_dir, name)
        if is_directory(source):
            rename(source, target)
        elif not is_directory(target):
            raise _lost(data_dir, journal, target)
    sync_path(data_dir)
    for name, segments in journal.segments.items():
        _reveal(data_dir, journal, os.path.join(data_dir, name), segments)
    log_dir = LogDir(data_dir)
    starts = log_dir.log_starts.read_or_warn()
    made = {partition_of(name) for name in journal.made}

    def end_of(name: str) -> tuple[TopicPartition, int]:
        tp, directory = partition_of(name), os.path.join(data_dir, name)
        start, expected = journal.ends[name]
        if tp not in made:
            start = starts.get(tp, 0)
        log = load_log(directory, tp, LogConfig(), log_start_offset=start, had_clean_shutdown=True, sole_replica=True)
        end = log.log_end_offset
        log.close()
        if end < expected:
            raise CorruptFile(f"{directory}: the log ends at {end}, with what was loaded it has to end at {expected}")
        return tp, end

    ends = dict(side_by_side(end_of, journal.ends))
    for file in (log_dir.recovery_points, log_dir.high_watermarks):
        file.write(file.read_or_warn() | ends)
    for file in (log_dir.log_starts, log_dir.cleaner_offsets):
        offsets = file.read_or_warn()
        if made & offsets.keys():  # of an earlier log of that name
            file.write({tp: offset for tp, offset in offsets.items() if tp not in made})
    if journal.stream is not None:
        _note_batch(data_dir, *journal.stream)
    if journal.clean:
        write_clean_shutdown(data_dir, journal.broker_epoch)
    unlink_if_there(os.path.join(data_dir, JOURNAL_FILE))
    sync_path(data_dir)
    for name in (journal.staging, *(target for _, target in journal.aside)):
        remove_leftover(os.path.join(data_dir, name))


def _reveal(data_dir: str, journal: LoadJournal, directory: str, segments: Sequence[Sequence[int]]) -> None:
    """.cleaned becomes .swap, the lowest offset last: before that a loader takes none of them, and after it all."""
    for base_offset, size in reversed(segments):
        for suffix in SEGMENT_SUFFIXES:
            path = segment_file(directory, base_offset, suffix)
            if exists(path + CLEANED_SUFFIX):
                if (base_offset, suffix) == (segments[0][0], LOG_SUFFIX):
                    sync_path(directory)
                rename(path + CLEANED_SUFFIX, path + SWAP_SUFFIX)
        log = segment_file(directory, base_offset, LOG_SUFFIX)
        if not any(exists(path) and File(path).size >= size for path in (log + SWAP_SUFFIX, log)):
            raise _lost(data_dir, journal, log)
    sync_path(directory)


def _lost(data_dir: str, journal: LoadJournal, path: str) -> CorruptFile:
    return CorruptFile(
        f"{path} is missing: a load into {', '.join(sorted(journal.ends))} was interrupted, and before it was finished "
        f"another broker has opened the directory and removed what was staged.  Some of these partitions have the "
        f"records and others not.  Remove {os.path.join(data_dir, JOURNAL_FILE)} to go on with what is there"
    )


def remove_leftover(path: str) -> None:
    """Remove a directory of a load; one that cannot be removed is logged and left."""
    try:
        remove_tree(path)
    except OSError as error:  # the next broker tries again
        logger.warning("%s: what a load has left could not be removed: %s", path, plain_error(error))


def partition_of(name: str) -> TopicPartition:
    """The partition of a directory's name in the journal.  Raises CorruptFile."""
    parsed = parse_partition_directory(name)
    if parsed is None:
        raise CorruptFile(f"{JOURNAL_FILE}: {name!r} is no partition's directory")
    return parsed.topic_partition


# -- small files -------------------------------------------------------------------------------------------------------


def _write_json(path: str, content: object) -> None:
    """JSON after a line with its CRC-32C."""
    text = json.dumps(content, indent=1).encode()
    write_atomically(path, b"%08x\n%s\n" % (crc32c(text), text))


def _read_json(path: str) -> dict[str, Any] | None:
    try:
        data = read_file(path)
    except FileNotFoundError:
        return None
    crc, _, text = data.rstrip(b"\n").partition(b"\n")
    if crc != b"%08x" % crc32c(text):
        raise CorruptFile(f"{path}: line 1: the CRC is {crc32c(text):08x}, found {crc!r}")
    content = json.loads(text)
    if content["version"] != _VERSION:
        raise CorruptFile(f"{path}: version {content['version']}, expected {_VERSION}")
    return content


def read_journal(data_dir: str) -> LoadJournal | None:
    """None if there is none.  Raises CorruptFile, OSError."""
    content = _read_json(os.path.join(data_dir, JOURNAL_FILE))
    return None if content is None else LoadJournal(**content)


def write_journal(data_dir: str, journal: LoadJournal) -> None:
    """From its return on the load will be finished.  Raises OSError."""
    _write_json(os.path.join(data_dir, JOURNAL_FILE), asdict(journal))


def last_batches(data_dir: str) -> dict[str, int]:
    """Stream id -> number of the last batch that was loaded.  Raises CorruptFile, OSError."""
    content = _read_json(os.path.join(data_dir, STREAMS_FILE))
    return {} if content is None else content["last_batches"]


def _note_batch(data_dir: str, stream: str, batch: int) -> None:
    batches = last_batches(data_dir)
    content = {"version": _VERSION, "last_batches": batches | {stream: max(batch, batches.get(stream, -1))}}
    _write_json(os.path.join(data_dir, STREAMS_FILE), content)


def side_by_side(task: Callable[[_Item], _Result], items: Iterable[_Item]) -> list[_Result]:
    """Each partition waits for the disk several times; all of them are done or have failed when this returns."""
    with ThreadPoolExecutor(_THREADS, "kcore-load") as threads:
        return list(threads.map(task, items))
