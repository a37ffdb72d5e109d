"""Whether every byte of a log is what was written: the checks of `kcore verify`.

Checked in each .log: every batch with its CRC and its records (decompressed, counted); offsets ascend, from the
segment's base offset on and below the next segment's; leader epochs agree with leader-epoch-checkpoint.
Checked beside it: indexes against the batches they point at (IDX-17); transaction indexes and snapshots against the
batches of their producers; checkpoints and small files by their own rules and against the end of each log.
docs/commands/verify.md lists what no check can find.

Nothing is opened as a log and nothing is written, so verify() may run on a damaged directory.  In a directory in use it
may read a batch that is being written: a partial batch at the end is then a warning, as after a crash.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from kcore.common.progress import Progress
from kcore.common.text import some_of
from kcore.inspect import log_files
from kcore.inspect.batch_checks import check_batches, consistent
from kcore.inspect.directories import lacks_meta_properties
from kcore.inspect.epoch_checks import faults_between_segments
from kcore.inspect.gap_checks import check_gaps, find_gaps
from kcore.inspect.parallel import Work, in_order, scan_segment_of
from kcore.inspect.partition_checks import (
    SEGMENT_KINDS,
    IndexContents,
    PartitionFiles,
    Problem,
    beyond_recovery_point,
    check_end,
    check_index,
    check_other_logs,
    check_small_file,
    lone_log_problems,
    read_index,
    unreadable,
)
from kcore.inspect.producer_checks import check_producers
from kcore.inspect.segment_scan import ScannedSegment, scan_segment
from kcore.log.checkpoints import (
    LEADER_EPOCH_CHECKPOINT,
    RECOVERY_POINT_CHECKPOINT,
    REPLICATION_OFFSET_CHECKPOINT,
)
from kcore.log.log_file_names import (
    DELETED_SUFFIX,
    LOG_SUFFIX,
    OFFSET_INDEX_SUFFIX,
    PARTITION_METADATA_FILE,
    SWAP_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
)

_INDEXES = (OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX)


@dataclass
class Summary:
    """What was examined, and how long it took."""

    files: int = 0
    bytes: int = 0
    #: The bytes without the holes of sparse files, which are not read.
    read: int = 0
    batches: int = 0
    records: int = 0
    seconds: float = 0.0
    damaged: int = 0
    warnings: int = 0
    #: Gaps that compaction left; other gaps count as damage or warnings.
    gaps: int = 0
    #: Files of segments that a cleaning or a deletion has replaced (.deleted): a broker removes them a minute later, or
    #: at its next start.
    to_delete: int = 0
    interrupted: bool = False

    def count(self, problem: Problem) -> None:
        self.damaged += problem.damage
        self.warnings += problem.warning
        self.gaps += problem.gaps if problem.explained else 0

    def add(self, other: Summary) -> None:
        self.files += other.files
        self.bytes += other.bytes
        self.read += other.read
        self.batches += other.batches
        self.records += other.records
        self.to_delete += other.to_delete


def verify(
    path: str,
    summary: Summary | None = None,
    *,
    records: bool = True,
    compacted: bool = False,
    jobs: int = 1,
    progress: Progress | None = None,
) -> Iterator[Problem]:
    """The problems of a file, a partition directory or a data directory, one at a time, in the order of the files.

    summary: gets the counts of what was examined and of the problems, complete when the iterator is exhausted.
    records: decompress, parse and count the records of each batch; False checks the CRCs only.  compacted: gaps between
    offsets are no damage.  jobs: how many segments are read at a time, each by a thread.
    Raises, at the first step of the iterator, OSError and CorruptFile for a path that is no file or directory of a log;
    a file inside a directory that cannot be read is a Problem.
    """
    progress = progress or Progress("verify", 0, quiet=True)
    if summary is None:
        summary = Summary()
    verifier = Verifier(records, progress, compacted=compacted)
    for result in in_order(verifier.work(path), jobs, progress):
        summary.add(result.counts)
        progress.findings += len(result.problems)
        for problem in result.problems:
            summary.count(problem)
            yield problem


@dataclass
class Examined:
    """The result of one piece of work."""

    counts: Summary = field(default_factory=Summary)
    problems: list[Problem] = field(default_factory=list)


class Verifier:
    """Divides the check of a path into pieces: each segment by itself, then the checks that need all segments."""

    def __init__(self, records: bool, progress: Progress, *, compacted: bool = False) -> None:
        self.records = records
        self.compacted = compacted
        self.progress = progress

    def work(self, path: str) -> Iterator[Work[Examined]]:
        if not os.path.isdir(path):
            log_files.files_under(path)
            yield lambda: self._single_file(path), True
        elif log_files.is_partition_dir(path):
            yield from self._partition(path)
        else:
            directories = log_files.partition_dirs(path)
            files = log_files.known_files(path)
            if not directories and not files:
                raise log_files.no_partitions(path)
            for file in files:
                yield self.small_file(file), True
            yield lambda: Examined(problems=[*_missing_properties(path)]), True
            for directory in directories:
                yield from self._partition(directory)

    def _partition(self, directory: str) -> Iterator[Work[Examined]]:
        try:
            partition = PartitionFiles.of(directory)
        except OSError as error:
            problem = unreadable(directory, error)
            yield lambda: Examined(problems=[problem]), True
            return
        scanned: list[ScannedSegment] = []
        for base in partition.bases:
            yield self.segment(partition, base, scanned), False
        yield lambda: self.rest(partition, scanned), True

    def segment(self, partition: PartitionFiles, base: int, scanned: list[ScannedSegment]) -> Callable[[], Examined]:
        def examine() -> Examined:
            path = partition.file(base, LOG_SUFFIX)
            result = Examined()
            result.problems += _wrong_name(partition, base)
            # The indexes are read before the log: a running broker appends to the log first, then to the indexes.
            indexes = {suffix: _index_as_it_is(partition.file(base, suffix)) for suffix in _INDEXES}
            try:
                segment = self._scanned(partition, base)
            except OSError as error:
                result.problems.append(unreadable(path, error))
                scanned.append(ScannedSegment(path))
                return result
            sound = consistent(partition, base, segment)
            find_gaps(partition, base, sound)
            scanned.append(sound)
            _judge_log(partition, base, segment, sound, result)
            for suffix, contents in indexes.items():
                self._index(partition, base, partition.file(base, suffix), contents, sound, result)
            return result

        return examine

    def _scanned(self, partition: PartitionFiles, base: int) -> ScannedSegment:
        """Raises OSError."""
        return scan_segment_of(partition, base, self.progress, records=self.records, compacted=self.compacted)

    def _index(
        self,
        partition: PartitionFiles,
        base: int,
        path: str,
        contents: IndexContents | None,
        segment: ScannedSegment,
        result: Examined,
    ) -> None:
        if not os.path.lexists(path):  # rest() says it
            return
        result.counts.files += 1
        try:
            if contents is not None:
                # Without the empty slots of an index in use.
                result.counts.bytes += contents.entries.nbytes
                result.counts.read += contents.entries.nbytes
            if not segment.overlaps_next:
                result.problems += check_index(partition, base, path, segment, contents)
            self.progress.advance(os.path.getsize(path), path)
        except OSError as error:
            result.problems.append(unreadable(path, error))

    def rest(self, partition: PartitionFiles, scanned: list[ScannedSegment]) -> Examined:
        """The checks that need all segments of the partition, or none of them."""
        result = Examined()
        directory = partition.directory
        if not partition.bases:
            text = "a partition directory without a .log file"
            result.problems.append(Problem(directory, text, warning=True))
        for other in partition.misplaced:
            result.problems.append(partition.misplaced_problem(other))
            self._count_misplaced(partition, other, result)
        for path in log_files.known_files(directory):
            base = partition.base_of(path)
            if base in partition.misplaced:
                continue  # said above, in one line
            if path.endswith((*_INDEXES, TXN_INDEX_SUFFIX)) and base not in partition.bases:
                # A log in use may have a new segment that was not there when PartitionFiles.of() listed them.
                if base is None or not os.path.lexists(partition.file(base, LOG_SUFFIX)):
                    result.problems.append(Problem(path, "no .log beside this index", warning=True))
            elif not path.endswith(SEGMENT_KINDS):
                examined = self.small_file(path)()
                result.counts.add(examined.counts)
                result.problems += examined.problems
        result.problems += check_other_logs(directory)
        result.problems += _missing_indexes(partition)
        by_path = {segment.path: segment for segment in scanned}
        ordered = [by_path[partition.file(base, LOG_SUFFIX)] for base in partition.bases]
        result.problems += _missing_epochs(partition, ordered)
        # Of two segments with the same offsets one line is enough.
        overlapped = {partition.next_base(b) for b, s in zip(partition.bases, ordered, strict=True) if s.overlaps_next}
        gaps = check_gaps(partition, ordered, compacted=self.compacted)
        result.problems += (gap for gap in gaps if gap.explained or gap.offset not in overlapped)
        result.problems += faults_between_segments(partition, ordered)
        try:
            result.problems += check_producers(partition, ordered)
        except OSError as error:
            result.problems.append(unreadable(directory, error))
        passing = log_files.passing_files(directory)
        unfinished = [name for name in passing if not name.endswith(DELETED_SUFFIX)]
        result.counts.to_delete += len(passing) - len(unfinished)
        result.problems += _left_over(directory, unfinished)
        for name in passing:
            if name.endswith(LOG_SUFFIX + SWAP_SUFFIX):
                # It replaces other segments when the log is opened.
                result.problems += self.small_file(os.path.join(directory, name))().problems
        return result

    def _count_misplaced(self, partition: PartitionFiles, name: int, result: Examined) -> None:
        """The files of a segment of another log count as examined; what is wrong in them does not matter."""
        try:
            _count(result.counts, scan_segment(partition.file(name, LOG_SUFFIX), records=False, progress=self.progress))
        except OSError as error:
            result.problems.append(unreadable(partition.file(name, LOG_SUFFIX), error))

    def small_file(self, path: str) -> Callable[[], Examined]:
        def examine() -> Examined:
            result = Examined()
            try:
                kind = log_files.kind_of(path)
                if kind is not None and kind.kind == LOG_SUFFIX:
                    self._lone_log(path, result)
                    return result
                result.counts.files += 1
                size = os.path.getsize(path)
                result.counts.bytes += size
                result.counts.read += size
                result.problems += check_small_file(path)
                self.progress.advance(size, path)
            except OSError as error:
                result.problems.append(unreadable(path, error))
            return result

        return examine

    def _lone_log(self, path: str, result: Examined) -> None:
        """A file of batches that belongs to no log here, so it is not compared with other files."""
        segment = scan_segment(path, records=self.records, progress=self.progress)
        _count(result.counts, segment)
        result.problems += lone_log_problems(segment)

    def _single_file(self, path: str) -> Examined:
        """One file, with the other files of its directory that it is checked against."""
        kind = log_files.kind_of_named(path)
        base = log_files.base_offset_of(path)
        assert kind is not None
        if kind.mark or kind.kind not in SEGMENT_KINDS or base is None:
            result = Examined()
            if kind.kind == LOG_SUFFIX:
                self._lone_log(path, result)
                return result
            return self.small_file(path)()
        partition = PartitionFiles.of(os.path.dirname(path) or ".")
        base = partition.base_of(path)
        assert base is not None
        if base in partition.misplaced:
            result = Examined(problems=[partition.misplaced_problem(base)._replace(path=path)])
            if kind.kind == LOG_SUFFIX:
                self._count_misplaced(partition, base, result)
            return result
        if base not in partition.bases:
            return Examined(problems=[Problem(path, "no .log beside this index", warning=True)])
        # An index is checked against its .log.  Damage in the .log limits that check, so it is reported too.
        is_log = kind.kind == LOG_SUFFIX
        segment = self._scanned(partition, base)
        # As the caller names it: without "./".
        segment.path = os.path.join(os.path.dirname(path), os.path.basename(segment.path))
        sound = consistent(partition, base, segment)
        result = Examined(problems=_wrong_name(partition, base))
        if is_log:
            find_gaps(partition, base, sound)
            _judge_log(partition, base, segment, sound, result)
            result.problems += check_gaps(partition, [sound], compacted=self.compacted)
        else:
            result.counts.files += 1
            result.counts.bytes += os.path.getsize(path)
            result.problems += check_batches(partition, base, segment)
            if not sound.overlaps_next:
                result.problems += check_index(partition, base, path, sound)
        return result


def _wrong_name(partition: PartitionFiles, base: int) -> list[Problem]:
    problem = partition.wrong_name(base)
    return [] if problem is None else [problem]


def _index_as_it_is(path: str) -> IndexContents | None:
    """None if there is no index, or it cannot be read or is too large."""
    try:
        return read_index(path) if os.path.getsize(path) <= log_files.MAX_INDEX_SIZE else None
    except OSError:
        return None


def _missing_indexes(partition: PartitionFiles) -> Iterator[Problem]:
    """One problem for each kind: a backup without indexes lacks that of each segment."""
    for suffix in _INDEXES:
        bases = [base for base in partition.bases if os.path.lexists(partition.file(base, LOG_SUFFIX))]
        missing = [path for base in bases if not os.path.lexists(path := partition.file(base, suffix))]
        if len(missing) == 1:
            yield Problem(missing[0], "missing; it is rebuilt when the log is opened", warning=True)
        elif missing:
            names = some_of([os.path.basename(path) for path in missing], shown=3)
            text = f"{len(missing)} {suffix} files are missing, {names}; they are rebuilt when the log is opened"
            yield Problem(partition.directory, text, warning=True)


def _missing_epochs(partition: PartitionFiles, segments: Iterable[ScannedSegment]) -> Iterator[Problem]:
    """After an unclean stop a broker rebuilds them.  A log without a topic's id may never have been a broker's."""
    path = os.path.join(partition.directory, LEADER_EPOCH_CHECKPOINT)
    is_brokers = os.path.lexists(os.path.join(partition.directory, PARTITION_METADATA_FILE))
    has_epochs = any((segment.batches["leader_epoch"] >= 0).any() for segment in segments)
    if partition.clean and is_brokers and has_epochs and not os.path.lexists(path):
        text = "missing; no broker makes it again after a clean stop: it begins with the next leader epoch"
        yield Problem(path, text, warning=True)


def _missing_properties(data_dir: str) -> Iterator[Problem]:
    if lacks_meta_properties(data_dir):
        text = (
            "missing; Kafka's brokers with KRaft refuse the directory until `kafka-storage.sh format` has written it; "
            "others, and kcore's, write it at their start"
        )
        yield Problem(os.path.join(data_dir, log_files.META_PROPERTIES_FILE), text, warning=True)


def _left_over(directory: str, names: list[str]) -> Iterator[Problem]:
    """One problem for all that an unfinished cleaning or split has left."""
    text = "left by a cleaning that did not end"
    if len(names) == 1:
        yield Problem(os.path.join(directory, names[0]), text, warning=True)
    elif names:
        yield Problem(directory, f"{len(names)} files were {text}: {some_of(names, shown=3)}", warning=True)


def _judge_log(
    partition: PartitionFiles, base: int, segment: ScannedSegment, sound: ScannedSegment, result: Examined
) -> None:
    """sound: consistent() of the segment."""
    _count(result.counts, segment)
    result.problems += check_batches(partition, base, segment)
    if partition.next_base(base) is not None:
        return
    end = base if sound.end_offset is None else sound.end_offset
    beyond = beyond_recovery_point(partition, base, sound)
    if beyond is not None:
        # Says more than check_end() about the same.
        result.problems.append(beyond)
    if not sound.incomplete:
        problems = check_end(partition, segment.path, end)
        result.problems += (p for p in problems if beyond is None or RECOVERY_POINT_CHECKPOINT not in p.text)
    elif segment.tail is not None and not partition.clean:
        problems = check_end(partition, segment.path, end)
        result.problems += (problem for problem in problems if REPLICATION_OFFSET_CHECKPOINT in problem.text)


def _count(counts: Summary, segment: ScannedSegment) -> None:
    counts.files += 1
    counts.bytes += segment.size
    counts.read += segment.data_size
    counts.batches += len(segment.batches)
    counts.records += segment.records


def problem_event(problem: Problem) -> dict[str, object]:
    """The keys of what `kcore dump --json` says about damage, and those of gaps."""
    return {
        "type": "gap" if problem.explained else "warning" if problem.warning else "damage",
        "file": problem.path,
        "offset": problem.offset,
        "position": problem.position,
        "problem": problem.text,
        "kind": "gap" if problem.gaps else None,
        "last_offset": problem.last_offset,
        "gaps": problem.gaps,
    }
