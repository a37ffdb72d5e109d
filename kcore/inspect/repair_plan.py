"""What `kcore repair` would do to a directory: which batches stay or are removed, which files change, and how.

A plan is made by reading only.  `kcore repair` prints the plan's actions and carries out the same actions; no other
code changes a file.
"""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, Literal, NamedTuple

from kcore.common.file import read_file
from kcore.common.progress import Progress
from kcore.errors import KafkaError
from kcore.inspect import log_files, lost_mark
from kcore.inspect.batch_checks import check_batches, check_name, with_right_epochs, with_right_offsets
from kcore.inspect.batch_reader import Correction, without_path
from kcore.inspect.directories import data_dir_of, partitions_under
from kcore.inspect.epoch_checks import epoch_faults, epochs_ascend, is_truth_about_epochs
from kcore.inspect.gap_checks import check_gaps, find_gaps
from kcore.inspect.parallel import scan_all
from kcore.inspect.partition_checks import (
    PartitionFiles,
    Problem,
    as_far_as_readable,
    beyond_recovery_point,
    check_end,
    check_index,
    check_other_logs,
    check_small_file,
    end_limit,
    epochs_of,
    inside_segment,
    lone_log_problems,
    longest_ascending,
    once_reached,
    unreadable,
)
from kcore.inspect.producer_checks import (
    AbortedTransactions,
    check_snapshots,
    check_txn_index,
    is_of_these_producers,
    open_at_start,
    read_snapshots,
)
from kcore.inspect.rebuild import DEFAULT_INDEX_INTERVAL_BYTES, rebuilt_indexes
from kcore.inspect.repair_losses import AFTER_THE_CUT, Kept, Loss, first_doubtful_offsets, losses_of, missing_end
from kcore.inspect.segment_scan import Rows, ScannedSegment, scan_segment
from kcore.log.checkpoints import (
    LEADER_EPOCH_CHECKPOINT,
    RECOVERY_POINT_CHECKPOINT,
    OffsetCheckpointFile,
)
from kcore.log.log_file_names import (
    INDEX_SUFFIXES,
    LOG_SUFFIX,
    LOST_RECORDS_FILE,
    OFFSET_INDEX_SUFFIX,
    PARTITION_METADATA_FILE,
    SNAPSHOT_SUFFIX,
    SWAP_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
)
from kcore.log.lost_records import encode_mark
from kcore.log.transaction_index import decode_entries, encode_entries

if TYPE_CHECKING:
    import numpy as np

#: truncate: the log ends before the first bad batch.  keep-after: only the bad batches are removed.
Salvage = Literal["truncate", "keep-after"]
#: correct: write fields of batch headers of a .log; cut: remove its end; drop: remove bytes inside it; rewrite, create:
#: write a new content; remove: the file.
What = Literal["correct", "cut", "drop", "rewrite", "create", "remove"]


#: How many corrections of a file an action's reason names.
_SHOWN_CORRECTIONS = 3


@dataclass
class Action:
    """One file that would change.  keep: the stretches of a .log that stay.  content: the new content of another file;
    None for an index, which is rebuilt from the changed .log, and for a file that is removed."""

    what: What
    path: str
    reason: str
    size: int = 0
    keep: list[tuple[int, int]] = field(default_factory=list)
    content: bytes | None = field(default=None, repr=False)
    #: Fields of the .log that are written anew; each is inside a stretch that stays.
    corrections: list[Correction] = field(default_factory=list)

    @property
    def new_size(self) -> int | None:
        if self.what in ("correct", "cut", "drop"):
            return sum(end - start for start, end in self.keep)
        return None if self.content is None else len(self.content)

    def write_to(self, target: str) -> None:
        """Make the new file at `target`, which is not there or is to be replaced.  Raises OSError."""
        if self.what == "remove":
            return
        temporary = f"{target}.tmp"
        with open(temporary, "wb") as file:
            if self.keep or self.what in ("correct", "cut", "drop"):
                with log_files.open_file(self.path) as source:
                    for start, end in self.keep:
                        _copy_range(source.fileno(), file.fileno(), start, end)
                self._correct(file.fileno())
            else:
                file.write(self._index_of(target) if self.content is None else self.content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target)

    def correct_in_place(self) -> None:
        """Write the fields into the file itself, which has all stretches where they were.  Raises OSError."""
        if self.corrections:
            with open(self.path, "r+b") as file:
                for correction in self.corrections:
                    os.pwrite(file.fileno(), correction.content, correction.at)
                os.fsync(file.fileno())

    def _correct(self, target: int) -> None:
        """Write the fields into a copy that has only the stretches that stay."""
        for correction in self.corrections:
            before = 0
            for start, end in self.keep:
                if start <= correction.at < end:
                    os.pwrite(target, correction.content, before + correction.at - start)
                before += end - start

    def _index_of(self, target: str) -> bytes:
        """The index of the .log beside the target, which is already written."""
        base = log_files.base_offset_of(target)
        assert base is not None
        stem, suffix = os.path.splitext(target)
        return rebuilt_indexes(stem + LOG_SUFFIX, base, DEFAULT_INDEX_INTERVAL_BYTES)[suffix]


def _copy_range(source: int, target: int, start: int, end: int) -> None:
    """Append the range to the target.  Holes stay holes: a sparse file of a terabyte may use one page of the disk."""
    shift = os.lseek(target, 0, os.SEEK_END) - start
    for first, last in log_files.data_stretches(source, start, end):
        while first < last:
            data = os.pread(source, min(last - first, 1 << 20), first)
            if not data:
                raise OSError(f"the file ended at {first} while it was copied")
            first += os.pwrite(target, data, first + shift)
    os.truncate(target, end + shift)


class Alternative(NamedTuple):
    """What the other salvage mode would keep in addition to what the plan keeps."""

    salvage: Salvage
    batches: int
    records: int
    size: int
    #: What it would lose in place of the plan's losses.
    losses: list[Loss]


class UnfitEnd(NamedTuple):
    """Files at the end of a log that may be another log's: nothing in the directory shows whose they are.

    end_offset: where the log ends without them.  reached_offset: the end that it had at least once, by its
    checkpoints."""

    paths: Sequence[str]
    end_offset: int
    reached_offset: int


@dataclass
class Plan:
    """The plan for one partition, or for the files of a data directory itself."""

    directory: str
    problems: list[Problem] = field(default_factory=list)
    losses: list[Loss] = field(default_factory=list)
    actions: list[Action] = field(default_factory=list)
    #: Problems that stay: no file here has the data to mend them.
    beyond_repair: list[Problem] = field(default_factory=list)
    #: The log end offset after the repair; None for a data directory.
    end_offset: int | None = None
    #: None if the other salvage mode keeps no more.
    alternative: Alternative | None = None
    #: What keeps the plan from changing the log, if only the user can tell whose it is.
    unfit_end: UnfitEnd | None = None


def plan_repair(
    path: str,
    *,
    salvage: Salvage = "truncate",
    compacted: bool = False,
    in_place: bool = False,
    jobs: int = 1,
    progress: Progress | None = None,
) -> list[Plan]:
    """What is wrong in a partition directory or a data directory, and what mending it changes and loses; nothing is
    written.  A plan for each partition, then one for the data directory where its own files are concerned.

    salvage: "truncate", the log ends before its first bad batch, or "keep-after", only the bad batches go.  compacted:
    gaps between offsets are no damage.  in_place: the plan is for the directory itself, so a partition's plan is
    followed by one for the checkpoints beside it; else for a copy.  jobs: how many segments are read at a time.
    Raises OSError, CorruptFile for a path that holds no log.
    """
    progress = progress or Progress("repair", 0, quiet=True)
    plans = []
    for directory in partitions_under(path):
        try:
            plans.append(plan_partition(directory, salvage, jobs, progress, compacted=compacted))
        except OSError as error:
            problem = unreadable(str(error.filename or directory), error)
            plans.append(Plan(directory, [problem], beyond_repair=[problem]))
        progress.findings += len(plans[-1].problems)
    data_dir = data_dir_of(path)
    # A copy of one partition has no data directory around it.  A partition that is mended in place must agree with the
    # checkpoints of its data directory.
    if data_dir == path or in_place:
        plans.append(plan_data_dir(data_dir, plans))
    return plans


def plan_partition(directory: str, salvage: Salvage, jobs: int, progress: Progress, *, compacted: bool = False) -> Plan:
    """compacted: gaps between offsets are no damage.  Raises OSError."""
    partition = PartitionFiles.of(directory)
    plan = Plan(directory, [*check_other_logs(directory)])
    plan.problems += (partition.misplaced_problem(name) for name in partition.misplaced)
    segments = scan_all(partition, jobs, progress, records=True, compacted=compacted)
    names = [partition.wrong_name(base) for base in partition.bases]
    names += (check_name(partition, base, segment) for base, segment in zip(partition.bases, segments, strict=True))
    wrong_names = [name for name in names if name is not None]
    if wrong_names:
        # The records are all there, and each repair of the log would remove some.
        plan.problems += wrong_names
        plan.beyond_repair += wrong_names
        plan.unfit_end = _unfit_end(partition, segments)
        return plan
    for n, (base, segment) in enumerate(zip(partition.bases, segments, strict=True)):
        plan.problems += check_batches(partition, base, segment)
        segments[n] = with_right_offsets(partition, base, segment)
        find_gaps(partition, base, segments[n])
    overlaps = [problem for problem in plan.problems if problem.is_wrong_name]
    if overlaps:
        # Each repair would remove batches of one of the two segments.
        plan.beyond_repair += overlaps
        return plan
    segments, wrong_epochs = with_right_epochs(partition, segments)
    plan.problems += _not_among(plan.problems, wrong_epochs)
    gaps = [gap for gap in check_gaps(partition, segments, compacted=compacted) if not gap.explained]
    plan.problems += gaps
    kept = _what_stays(partition, segments, salvage)
    if any(part.changed or part.after.corrections for part in kept) and any(
        n.endswith(SWAP_SUFFIX) for n in os.listdir(directory)
    ):
        text = "a cleaning was interrupted (.swap files): start a broker on it, or open the log once, and then repair"
        plan.beyond_repair.append(Problem(directory, text))
        plan.problems.append(plan.beyond_repair[-1])
        return plan
    last = kept[-1] if kept and not kept[-1].removed else None
    if last is not None and (beyond := beyond_recovery_point(partition, last.base, last.after)) is not None:
        plan.beyond_repair.append(beyond)
        plan.problems.append(beyond)
        return plan
    plan.problems += missing_end(partition, kept)
    _plan_logs(plan, partition, kept, salvage)
    _plan_misplaced(plan, partition, [part.after for part in kept if not part.removed])
    plan.alternative = _alternative(plan, partition, kept, salvage)
    remaining = [part for part in kept if not part.removed]
    plan.end_offset = next(
        (part.after.end_offset for part in reversed(remaining) if part.after.end_offset is not None),
        remaining[0].base if remaining else None,
    )
    if remaining and plan.end_offset is not None:
        plan.end_offset = max(plan.end_offset, remaining[-1].base)
    plan.beyond_repair += [gap for gap in gaps if gap.damage and (gap.offset or 0) < (plan.end_offset or 0)]
    _plan_indexes(plan, partition, kept)
    _plan_producers(plan, partition, kept)
    _plan_epochs(plan, partition, kept)
    _plan_mark(plan, partition, kept, gaps)
    for path in log_files.known_files(directory, marked=True):
        # A .log.swap may be the only copy of the segments that it replaces, so its damage is only reported.
        if log_files.is_kraft_snapshot(path) or path.endswith(LOG_SUFFIX + SWAP_SUFFIX):
            problems = check_lone_log(path)
            plan.problems += problems
            plan.beyond_repair += problems
    mark = os.path.join(directory, LOST_RECORDS_FILE)
    if os.path.lexists(mark):
        problems = as_far_as_readable(mark, check_small_file(mark))
        plan.problems += problems
        plan.beyond_repair += (problem for problem in problems if problem.damage)
    metadata = os.path.join(directory, PARTITION_METADATA_FILE)
    if os.path.lexists(metadata):
        _remove_if_unreadable(plan, metadata, "a broker writes it anew")
    return plan


def _not_among(known: list[Problem], problems: list[Problem]) -> list[Problem]:
    """Those about batches that have no problem yet.  (Neighbours in other files show more than one file does.)"""
    places = {(problem.path, problem.position) for problem in known}
    return [problem for problem in problems if (problem.path, problem.position) not in places]


def _what_stays(partition: PartitionFiles, segments: Sequence[ScannedSegment], salvage: Salvage) -> list[Kept]:
    """Which batches stay: valid ones that are where they should be; with "truncate" those before the first gap."""
    import numpy as np

    masks = []
    for base, segment in zip(partition.bases, segments, strict=True):
        rows = segment.batches
        bad = [damage.position for damage in segment.bad_records]
        inside = inside_segment(rows, rows["base_offset"], rows["last_offset"], base, end_limit(partition, base))
        masks.append(~np.isin(rows["position"], bad) & inside)
    # Offsets, which no CRC covers, ascend through the whole log: remove as few batches as needed for that.
    flat = np.concatenate([np.empty(0, bool), *masks])
    if len(flat):
        rows = Rows.of([segment.batches for segment in segments])
        at = np.flatnonzero(flat)
        flat = np.zeros(len(rows), bool)
        flat[at[longest_ascending(rows["base_offset"][at], rows["last_offset"][at])]] = True
    kept = []
    start, gone = 0, False
    for base, segment in zip(partition.bases, segments, strict=True):
        mask = flat[start : start + len(segment.batches)]
        start += len(segment.batches)
        if salvage == "truncate":
            mask, gone, removed = *_until_gap(segment, mask, gone), gone
        else:
            removed = False
        after = segment.only(mask)
        kept.append(Kept(base, segment, mask, after, _ranges(after), removed))
    return kept


def _alternative(plan: Plan, partition: PartitionFiles, kept: list[Kept], salvage: Salvage) -> Alternative | None:
    """What keep-after would keep beyond a plan with truncate.  (truncate never keeps more than keep-after.)"""
    if salvage == "keep-after" or not any(part.changed for part in kept):
        return None
    other = _what_stays(partition, [part.segment for part in kept], "keep-after")
    batches = records = size = 0
    for ours, theirs in zip(kept, other, strict=True):
        more = ours.segment.batches[theirs.mask & ~ours.mask]
        batches += len(more)
        records += ours.segment.records_of(more)
        size += int(more["size"].sum(dtype="i8"))
    return (
        Alternative("keep-after", batches, records, size, list(losses_of(partition, other, plan.problems)))
        if batches
        else None
    )


def _until_gap(segment: ScannedSegment, mask: np.ndarray, gone: bool) -> tuple[np.ndarray, bool]:
    """The mask up to the first byte that does not stay, and whether there is such a byte."""
    import numpy as np

    if gone:
        return np.zeros(len(mask), bool), True
    rows = segment.batches
    ends = rows["position"] + rows["size"]
    expected = np.concatenate([[0], ends[:-1]]) if len(rows) else np.empty(0, np.int64)
    breaks = np.flatnonzero(~mask | (rows["position"] != expected))
    first = int(breaks[0]) if len(breaks) else len(rows)
    covered = int(ends[first - 1]) if first else 0
    return np.arange(len(rows)) < first, covered < segment.size


def _ranges(segment: ScannedSegment) -> list[tuple[int, int]]:
    """The byte ranges of its batches; adjacent batches are one range."""
    import numpy as np

    rows = segment.batches
    if not len(rows):
        return []
    starts, ends = rows["position"], rows["position"] + rows["size"]
    breaks = np.flatnonzero(starts[1:] != ends[:-1])
    firsts, lasts = np.concatenate([[0], breaks + 1]), np.concatenate([breaks, [len(rows) - 1]])
    return [(int(starts[a]), int(ends[b])) for a, b in zip(firsts, lasts, strict=True)]


def _plan_logs(plan: Plan, partition: PartitionFiles, kept: list[Kept], salvage: Salvage) -> None:
    plan.losses += losses_of(partition, kept, plan.problems)
    for part in kept:
        path, size = part.segment.path, part.segment.size
        if part.removed:
            plan.actions.append(Action("remove", path, f"it is {AFTER_THE_CUT}", size))
        elif part.changed:
            tail_only = part.ranges in ([], [(0, end) for _, end in part.ranges[:1]])
            what: What = "cut" if tail_only else "drop"
            reason = "the log ends before the first bad batch" if salvage == "truncate" else "bad batches go"
            plan.actions.append(Action(what, path, reason, size, part.ranges, corrections=part.after.corrections))
        elif part.after.corrections:
            texts = [f"{correction.text} (position {correction.position})" for correction in part.after.corrections]
            more = f" and {len(texts) - _SHOWN_CORRECTIONS} more" if len(texts) > _SHOWN_CORRECTIONS else ""
            reason = "; ".join(texts[:_SHOWN_CORRECTIONS]) + more
            action = Action("correct", path, reason, size, part.ranges, corrections=part.after.corrections)
            plan.actions.append(action)


def _unfit_end(partition: PartitionFiles, segments: Sequence[ScannedSegment]) -> UnfitEnd | None:
    """After a log without a gap only files that do not begin with the offset of their name, and none of which goes on
    where the log ends.  They are not set aside: their offsets after that end are in no other file, so the records may
    be the log's, in files with wrong names.  None where the end looks otherwise."""
    end = None
    fitting = 0
    for base, segment in zip(partition.bases, segments, strict=True):
        first, last = segment.batches["base_offset"], segment.batches["last_offset"]
        has_gap = not len(first) or segment.damages or (first[1:] != last[:-1] + 1).any()
        if has_gap or first[0] != base or end not in (None, base) or base in partition.names:
            break
        fitting, end = fitting + 1, int(last[-1]) + 1
    unfit = list(zip(partition.bases, segments, strict=True))[fitting:]
    if end is None or not unfit:
        return None
    for base, segment in unfit:
        first = segment.batches["base_offset"]
        if not len(first) or segment.damages or first[0] in (end, partition.names.get(base, base)):
            return None
    return UnfitEnd([partition.file(base, LOG_SUFFIX) for base, _ in unfit], end, once_reached(partition))


def _plan_misplaced(plan: Plan, partition: PartitionFiles, segments: Sequence[ScannedSegment]) -> None:
    """The files of segments that are not the log's go, and no record of the log with them.  segments: the log's."""
    for path in log_files.known_files(partition.directory):
        name = partition.base_of(path)
        if name not in partition.misplaced:
            continue
        if path.endswith(LOG_SUFFIX):
            plan.actions.append(Action("remove", path, "it is not a segment of this log", log_files.size_of(path)))
        elif not path.endswith(SNAPSHOT_SUFFIX) or not is_of_these_producers(partition, path, segments):
            plan.actions.append(Action("remove", path, "its .log is not a segment of this log"))


def _plan_indexes(plan: Plan, partition: PartitionFiles, kept: list[Kept]) -> None:
    for part in kept:
        for suffix in (OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX):
            path = partition.file(part.base, suffix)
            there = os.path.lexists(path)
            if part.removed:
                if there:
                    plan.actions.append(Action("remove", path, "its .log goes"))
            elif not there:
                plan.actions.append(Action("create", path, "it is missing"))
            else:
                sound = part.segment.without(~part.mask)
                problems = as_far_as_readable(path, check_index(partition, part.base, path, sound))
                plan.problems += problems
                if part.changed or problems:
                    reason = "its .log changes" if part.changed else problems[0].text
                    plan.actions.append(Action("rewrite", path, reason))
    for path in log_files.known_files(partition.directory):
        base = partition.base_of(path)
        if path.endswith(INDEX_SUFFIXES) and base not in partition.bases and base not in partition.misplaced:
            plan.problems.append(Problem(path, "no .log beside this index", warning=True))
            plan.actions.append(Action("remove", path, "no .log beside it"))


def _plan_producers(plan: Plan, partition: PartitionFiles, kept: list[Kept]) -> None:
    snapshots = read_snapshots(partition)
    aborted = AbortedTransactions(open_at_start(partition, snapshots), partition.log_start_offset)
    end_offset = plan.end_offset or 0
    for part in kept:
        path = partition.file(part.base, TXN_INDEX_SUFFIX)
        there = os.path.lexists(path)
        if part.removed:
            if there:
                plan.actions.append(Action("remove", path, "its .log goes"))
            continue
        expected = aborted.of_segment(part.after)
        checks = check_txn_index(path, part.base, expected, aborted.markers, part.after)
        problems = as_far_as_readable(path, chain(check_small_file(path), checks) if there else checks)
        plan.problems += [] if part.changed else problems
        content = encode_entries(expected)
        if not problems and there:
            # Entries of transactions that cleaning removed are kept too, up to the new end of the log.
            current = read_file(path)
            content = encode_entries(e for e in decode_entries(current, path, part.base) if e.last_offset < end_offset)
            if content == current:
                continue
        elif not problems:
            continue
        reason = problems[0].text if problems else "the log ends earlier"
        if content:
            plan.actions.append(Action("rewrite" if there else "create", path, reason, content=content))
        elif there:
            plan.actions.append(Action("remove", path, reason))
    after = [part.after for part in kept if not part.removed]
    for path in log_files.known_files(partition.directory):
        offset = log_files.base_offset_of(path)
        if not path.endswith(SNAPSHOT_SUFFIX) or offset in partition.misplaced:
            continue
        if offset not in snapshots:
            _remove_if_unreadable(plan, path, "the state is made anew from the log")
        elif offset is not None and offset > end_offset:
            plan.actions.append(Action("remove", path, f"the log ends at {end_offset}"))
        elif problem := next(check_snapshots(partition, {offset: snapshots[offset]}, after), None) if after else None:
            plan.problems.append(problem)
            plan.actions.append(Action("remove", path, problem.text))


def _plan_epochs(plan: Plan, partition: PartitionFiles, kept: list[Kept]) -> None:
    path = os.path.join(partition.directory, LEADER_EPOCH_CHECKPOINT)
    parts = [part for part in kept if not part.removed]
    problems = as_far_as_readable(path, check_small_file(path)) if os.path.lexists(path) else []
    plan.problems += problems
    end_offset = plan.end_offset or 0
    after = [part.after for part in parts]
    uncertain = _uncertain_epochs(partition, after)
    # What a batch that goes shows about one that stays is true all the same.
    before = _uncertain_epochs(partition, [part.segment for part in kept])
    uncertain += _not_among(uncertain, [problem for problem in before if _stays(problem, after)])
    plan.problems += _not_among(plan.problems, before)
    plan.problems += _not_among(plan.problems, uncertain)
    may_rewrite = bool(uncertain) and _are_batches_right(partition, after)
    if not may_rewrite:
        plan.beyond_repair += uncertain
    if problems or may_rewrite:
        entries, reason = epochs_of(segment.batches for segment in after), (problems or uncertain)[0].text
    else:
        cut = any(part.removed for part in kept) or bool(parts and parts[-1].loses_end)
        old = partition.epochs or []
        entries = [e for e in old if e.start_offset < end_offset or (e.start_offset == end_offset and not cut)]
        reason = f"the log ends at {end_offset}"
    if entries != partition.epochs and (entries or partition.epochs or problems):
        content = _checkpoint([f"{entry.epoch} {entry.start_offset}" for entry in entries])
        plan.actions.append(Action("rewrite", path, reason, content=content))


def _uncertain_epochs(partition: PartitionFiles, segments: list[ScannedSegment]) -> list[Problem]:
    if not segments:
        return []
    return [problem for problem in epoch_faults(partition, segments).uncertain if problem.damage]


def _stays(problem: Problem, segments: Sequence[ScannedSegment]) -> bool:
    """Whether the batch that the problem is about is in the segments."""
    return any(segment.path == problem.path and problem.position in segment.batches["position"] for segment in segments)


def _are_batches_right(partition: PartitionFiles, segments: list[ScannedSegment]) -> bool:
    """Whether leader-epoch-checkpoint is wrong where batches contradict it."""
    return bool(partition.epochs) and epochs_ascend(segments) and not is_truth_about_epochs(partition, segments)


def _plan_mark(plan: Plan, partition: PartitionFiles, kept: list[Kept], gaps: list[Problem]) -> None:
    """First of the actions: it is on the disk before anything is cut."""
    losses = [(loss.first_offset, loss.last_offset) for loss in plan.losses]
    losses += ((offset, None) for offset in first_doubtful_offsets(partition, kept, gaps))
    first_offset = lost_mark.first_lost_offset(plan.directory, losses, partition.log_start_offset)
    if first_offset is not None:
        path = os.path.join(plan.directory, LOST_RECORDS_FILE)
        what: What = "rewrite" if os.path.lexists(path) else "create"
        plan.actions.insert(0, Action(what, path, lost_mark.REASON, content=encode_mark(first_offset)))


def _checkpoint(lines: list[str]) -> bytes:
    return "".join(f"{line}\n" for line in ("0", len(lines), *lines)).encode()


def _remove_if_unreadable(plan: Plan, path: str, then: str) -> None:
    problem = next(iter(as_far_as_readable(path, check_small_file(path))), None)
    if problem is not None and not problem.warning:
        plan.problems.append(problem)
        plan.actions.append(Action("remove", path, f"{problem.text}; {then}"))


def plan_data_dir(data_dir: str, plans: Sequence[Plan]) -> Plan:
    """The plan for the files of the data directory itself, given the plans for its partitions.  Raises OSError."""
    plan = Plan(data_dir)
    for path in log_files.known_files(data_dir):
        kind = log_files.kind_of(path)
        if kind is None or kind.kind != log_files.OFFSET_CHECKPOINT:
            is_log = kind is not None and kind.kind == LOG_SUFFIX
            problems = check_lone_log(path) if is_log else as_far_as_readable(path, check_small_file(path))
            plan.problems += problems
            plan.beyond_repair += problems
            continue
        try:
            offsets = OffsetCheckpointFile(path).read()
        except (KafkaError, OSError) as error:
            plan.problems.append(Problem(path, without_path(error, path)))
            plan.actions.append(Action("remove", path, f"{without_path(error, path)}; it is written anew"))
            continue
        changed = dict(offsets)
        for partition in plans:
            if (end := partition.end_offset) is None:
                continue
            files = PartitionFiles.of(partition.directory)
            tp = files.topic_partition
            if tp in offsets and os.path.basename(path) in files.checkpoints:
                at_end = os.path.basename(path) == RECOVERY_POINT_CHECKPOINT and files.clean
                changed[tp] = end if at_end else min(offsets[tp], end)
                if changed[tp] != offsets[tp] and not partition.losses:
                    plan.problems += (p for p in check_end(files, path, end) if os.path.basename(path) in p.text)
        if changed != offsets:
            content = _checkpoint([f"{tp.topic} {tp.partition} {offset}" for tp, offset in changed.items()])
            plan.actions.append(Action("rewrite", path, "logs end elsewhere", content=content))
    return plan


def check_lone_log(path: str) -> list[Problem]:
    """The problems of a file of batches that belongs to no log here."""
    try:
        return list(lone_log_problems(scan_segment(path)))
    except OSError as error:
        return [unreadable(path, error)]


def copy_entry(source: str, target: str) -> None:
    """Copy a file, the target of a link, or a whole directory.  A FIFO and a dangling link are made anew as such.
    Raises OSError."""
    if os.path.isdir(source):
        shutil.copytree(source, target, ignore=shutil.ignore_patterns(".lock"))
    elif os.path.isfile(source):
        shutil.copy2(source, target)
    elif os.path.islink(source):
        os.symlink(os.readlink(source), target)
    elif stat.S_ISFIFO(os.stat(source).st_mode):
        os.mkfifo(target)
