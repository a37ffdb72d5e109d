"""`kcore diff`: where two replicas differ first, and why."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import click

from kcore.common.progress import Progress
from kcore.common.text import bytes_text, counted, json_line, plain_error, with_snake_case
from kcore.errors import KafkaError
from kcore.inspect import log_files
from kcore.inspect.replica_diff import PartitionDiff, compare, diff_event, paired_partitions
from kcore.tools.command_line import DAMAGE, FILE, OK, Arguments, Decorator, json_option, reading_options
from kcore.tools.commands import command
from kcore.tools.dump_log_segments import time_text


def gaps_option() -> Decorator:
    return click.option(
        "--gaps-are-cleaning",
        is_flag=True,
        help="offsets that one side lacks between others are no difference: compaction removed their records",
    )


@command()
@click.argument("a", type=FILE, metavar="A", help="a partition directory, or a data directory")
@click.argument("b", type=FILE, metavar="B", help="what to compare it with: of the same kind")
@json_option("one JSON object a line for each partition, the summary last")
@gaps_option()
@reading_options()
def run(args: Arguments) -> int:
    """0 when the replicas hold the same, 1 when they do not or cannot be read.  Raises OSError, CorruptFile,
    UsageError."""
    pairs = list(paired_partitions(args.a, args.b))
    directories = [directory for pair in pairs for directory in pair if directory is not None]
    progress = Progress("diff", log_files.log_size_under(directories), quiet=args.quiet or args.json)
    different = 0
    for a, b in pairs:
        if a is None or b is None:
            different += 1
            lines = [_one_sided(a, b, args.json)]
        else:
            try:
                diff = compare(a, b, gaps_are_cleaning=args.gaps_are_cleaning, jobs=args.jobs, progress=progress)
            except (OSError, KafkaError) as error:
                different += 1
                lines = [_not_compared(a, b, error, args.json)]
            else:
                different += not diff.equal
                lines = [json_line(diff_event(diff))] if args.json else [*_text(diff)]
        progress.findings = different
        progress.clear()
        for line in lines:
            print(line)
    if args.json:
        print(json_line({"type": "summary", "partitions": len(pairs), "different": different}))
    elif len(pairs) > 1:
        print(f"{counted(len(pairs), 'partition')}, {different} different")
    return DAMAGE if different else OK


def _one_sided(a: str | None, b: str | None, as_json: bool) -> str:
    if as_json:
        return json_line({"type": "partition", "a": a, "b": b, "equal": False})
    return f"{a or b}: only {'A' if a else 'B'} has this partition"


def _not_compared(a: str, b: str, error: Exception, as_json: bool) -> str:
    if as_json:
        return json_line({"type": "partition", "a": a, "b": b, "equal": False, "damage": [plain_error(error)]})
    return f"{a} and {b}: cannot be compared: {plain_error(error)}"


def _text(diff: PartitionDiff) -> Iterator[str]:
    event = with_snake_case(diff_event(diff))
    yield f"A {diff.a}"
    yield f"B {diff.b}"
    yield from (f"  DAMAGE {text}" for text in diff.damages)
    a, b = diff.common_bytes
    size = counted(a, "byte") if a == b else f"{counted(a, 'byte')} in A, {b} in B"
    same = "the same but for the gaps" if diff.gaps else "the same"
    yield f"  {same}: offsets {diff.start} to below {diff.common_end}, {size}"
    if diff.divergence is not None:
        yield from _divergence_text(diff)
    for name, tail in (("A", diff.only_a), ("B", diff.only_b)):
        if tail is not None:
            records = counted(tail.records, "record")
            yield f"  only {name} has offsets {tail.first_offset} to {tail.last_offset}, {records}"
    yield from (f"  {text}" for text in gap_texts(event))
    if not diff.equal:
        yield from _epochs_text(diff)
    yield from (f"  note: {note}" for note in notes(event))
    yield "  no difference" if diff.equal else "  different"


def notes(event: Mapping[str, Any]) -> Iterator[str]:
    """What a line of `kcore diff --json` lists that is no difference: what retention or cleaning may do."""
    for name in "ab":
        if before := event[f"before_{name}"]:
            yield f"{name.upper()} starts earlier, it has offsets {before['first_offset']} to {before['last_offset']}"
    yield from _gap_texts(event, cleaned=True)
    if event["rewritten"]:
        batches = counted(event["rewritten"], "batch", "batches")
        yield f"{batches} of A hold the same records in other bytes, as after cleaning"


def gap_texts(event: Mapping[str, Any]) -> Iterator[str]:
    """The gaps of a line of `kcore diff --json` that are a difference: offsets that one side lacks between others."""
    return _gap_texts(event, cleaned=False)


def _gap_texts(event: Mapping[str, Any], *, cleaned: bool) -> Iterator[str]:
    gaps = [gap for gap in event["gaps"] if gap["cleaned"] == cleaned]
    for gap in gaps[:10]:
        records = counted(gap["records"], "record")
        how = "as after cleaning" if cleaned else f"{records}: nothing shows that cleaning removed them"
        yield f"{gap['missing_in'].upper()} lacks offsets {gap['first_offset']} to {gap['last_offset']}, {how}"
    if len(gaps) > 10:
        yield f"and {len(gaps) - 10} more such gaps"


def _divergence_text(diff: PartitionDiff) -> Iterator[str]:
    divergence = diff.divergence
    assert divergence is not None
    yield f"  first difference: offset {divergence.offset}"
    for name, side in (("A", divergence.a), ("B", divergence.b)):
        yield f"    {name}: {side.file} position {side.position}, leader epoch {side.leader_epoch}"
    for what, names in (("batch", divergence.batch_fields), ("record", divergence.record_fields)):
        for field in names:
            values = [getattr(side, what).get(field) for side in (divergence.a, divergence.b)]
            shown = [bytes_text(value) if isinstance(value, bytes) else time_text(field, value) for value in values]
            yield f"    {what} {field}: A {shown[0]}, B {shown[1]}"


def _epochs_text(diff: PartitionDiff) -> Iterator[str]:
    for name, entries in (("A", diff.epochs_a), ("B", diff.epochs_b)):
        shown = ", ".join(f"{entry.epoch} from {entry.start_offset}" for entry in entries)
        yield f"  leader epochs of {name}: {shown or 'none'}"
    if diff.newer is not None:
        where = "there" if diff.divergence is not None else "last"
        older = "B" if diff.newer == "a" else "A"
        yield f"  {diff.newer.upper()} was written by the later leader {where}: {older} would have to follow it"
    elif diff.divergence is not None:
        yield "  both were written in the same leader epoch there: no election explains the difference"
    for follower, leader, cut in (("A", "B", diff.a_follows_b), ("B", "A", diff.b_follows_a)):
        if cut is None:
            yield f"  if {follower} followed {leader}: {follower} has no epochs, it would cut to its high watermark"
            continue
        lost = counted(cut.records_lost, "record")
        yield f"  if {follower} followed {leader}: cut to {cut.offset}, {follower} loses {lost}"
        yield from (f"    {step}" for step in cut.steps)
        if cut.difference_stays:
            yield "    the difference below that would stay: the epochs do not show it"
