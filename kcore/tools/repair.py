"""`kcore repair`: say what is wrong with a directory and what a repair would lose; with --apply, repair it.

Without --apply nothing is written.  --apply makes a repaired copy.  --apply --in-place repairs the directory itself;
every byte that it removes is first saved in a file whose name ends in .repair-cut, which neither Kafka nor kcore reads.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

import click

from kcore.common.progress import Progress
from kcore.common.text import bytes_of, counted, json_line, some_of
from kcore.inspect import log_files
from kcore.inspect.directories import closed_directory, data_dir_of, partitions_under
from kcore.inspect.partition_checks import Problem
from kcore.inspect.repair import ASIDE_SUFFIX, apply_in_place, apply_to_copy
from kcore.inspect.repair_losses import AFTER_THE_CUT, Loss
from kcore.inspect.repair_plan import Action, Plan, UnfitEnd, plan_repair
from kcore.log.log_file_names import parse_partition_directory
from kcore.tools.command_line import DAMAGE, DIRECTORY, FILE, OK, Arguments, UsageError, json_option, reading_options
from kcore.tools.commands import command
from kcore.tools.verify import compacted_option, problem_event, problem_text, verify

_KEEP_AFTER = """\
keep-after keeps the batches after the damage, with these consequences:
- consumers skip the gap without an error; `kcore verify` goes on reporting it as damage;
- this replica differs from the others for good: it must not become leader while one of them has the whole log;
- a transaction whose marker was in the gap has no known end: read_committed consumers may wait for it for ever;
- what the gap held of a compacted topic is missing: an older value of the same key counts again."""

_GAPS = """\
The records of a gap are in no file here: copy the missing segment from a backup or from another replica, or delete this
replica and have it fetched again."""


@command(one_of=[("--output", "--in-place")])
@click.argument("path", type=FILE, metavar="PATH", help="a partition directory or a data directory, closed")
@json_option("one JSON object a line: problems, losses, actions, the summary last")
@click.option("--apply", is_flag=True, help="do what the plan says; without it nothing is written")
@click.option("--output", type=DIRECTORY, metavar="DIR", help="where the repaired copy goes; default: PATH.repaired")
@click.option(
    "--in-place",
    is_flag=True,
    help=f"repair the directory itself; bytes that go are kept in files *{ASIDE_SUFFIX} beside what they come from",
)
@click.option(
    "--salvage",
    type=click.Choice(["truncate", "keep-after"]),
    default="truncate",
    help="truncate: the log ends before the first bad batch, as a recovery ends it beyond the recovery point "
    "(default); keep-after: only the bad batches go, the valid ones after them stay, and a gap is left",
)
@compacted_option()
@reading_options()
def run(args: Arguments) -> int:
    """0 when there is no damage and nothing to repair, or everything was repaired; 1 when there is a plan, or something
    stays wrong.  Raises OSError, DirectoryInUse, CorruptFile, UsageError."""
    path = os.path.normpath(args.path)
    output = None if args.in_place else os.path.normpath(args.output or f"{path}.repaired")
    if args.apply and output is not None and os.path.lexists(output):
        raise UsageError(f"{output} is there already; name another place with --output")
    if output is not None and os.path.realpath(output).startswith(os.path.join(os.path.realpath(path), "")):
        raise UsageError(f"{output} is inside {path}: name a place outside it with --output")
    if not os.path.isdir(path):
        os.stat(path)
        raise UsageError(f"{path}: a directory is wanted, of a partition or of several")
    with closed_directory(path, write=args.apply and args.in_place):
        progress = Progress("repair", log_files.log_size_under(partitions_under(path)), quiet=args.quiet or args.json)
        plans = plan_repair(
            path,
            salvage=args.salvage,
            compacted=args.compacted,
            in_place=args.in_place,
            jobs=args.jobs,
            progress=progress,
        )
        progress.clear()
        for plan in plans:
            for line in _plan_lines(plan, args.json):
                print(line)
        changes = any(plan.actions for plan in plans)
        # A warning that changes no file (as for a gap after a truncation) leaves the status at 0, as in `kcore verify`.
        something = changes or any(problem.damage for plan in plans for problem in plan.problems)
        aside: list[str] = []
        if args.apply and changes:
            if output is None:
                aside = apply_in_place(path, plans)
            else:
                apply_to_copy(path, plans, output)
    result = path if output is None else output
    applied = args.apply and changes
    damage = _problems_left(result, args) if applied else []
    # Gaps are listed apart: the plan made them, or they were there before and are beyond repair.
    remaining = [problem_text(problem) for problem in damage if not problem.gaps]
    gaps = [problem_text(problem) for problem in damage if problem.gaps]
    for line in _outcome_lines(args, path, result, plans, aside, remaining, gaps, applied):
        print(line)
    if applied:
        left = any(problem.damage for plan in plans for problem in plan.beyond_repair)
        return DAMAGE if remaining or left else OK
    return DAMAGE if something else OK


def _is_in_the_way(path: str, result: str) -> bool:
    """Whether the copy of a partition would be in a data directory, with a name that no partition can have."""
    among = os.path.dirname(os.path.abspath(result)) == os.path.abspath(data_dir_of(path))
    return among and parse_partition_directory(os.path.basename(result)) is None


def _problems_left(result: str, args: Arguments) -> list[Problem]:
    """The damage that `kcore verify` still finds in the repaired directory."""
    problems = verify(result, jobs=args.jobs, compacted=args.compacted)
    return [problem for problem in problems if problem.damage]


def _plan_lines(plan: Plan, as_json: bool) -> Iterator[str]:
    if as_json:
        yield from (json_line(problem_event(problem)) for problem in plan.problems)
        yield from (json_line(_loss_event(loss)) for loss in plan.losses)
        yield from (json_line(_action_event(action)) for action in plan.actions)
        return
    if not plan.problems and not plan.actions:
        return
    yield f"{plan.directory}:"
    # The line above has the directory, so these lines have file names only.
    shown = [_inside(plan, problem) for problem in plan.problems if problem not in plan.beyond_repair]
    yield from (f"  {problem_text(problem)}" for problem in shown)
    yield from (f"  {'missing' if loss.missing_offsets else 'goes'}: {_loss_text(loss)}" for loss in plan.losses)
    for action in plan.actions:
        sizes = "" if action.what not in ("cut", "drop") else f" {action.size} -> {action.new_size} bytes"
        yield f"  {action.what}: {os.path.basename(action.path)}{sizes}: {action.reason}"
    if plan.losses:
        yield f"  the log then ends at offset {plan.end_offset}"
    if (other := plan.alternative) is not None:
        kept = f"{counted(other.records, 'record')} in {counted(other.batches, 'batch', 'batches')}"
        yield f"  --salvage {other.salvage} would keep more: {kept} after the damage, {bytes_of(other.size)}"
    yield from (f"  cannot be repaired: {problem_text(_inside(plan, problem))}" for problem in plan.beyond_repair)
    if plan.unfit_end is not None:
        yield f"  {_unfit_end_text(plan.unfit_end)}"


def _unfit_end_text(unfit: UnfitEnd) -> str:
    files = some_of([os.path.basename(path) for path in unfit.paths])
    are, their, them = ("is", "its", "it") if len(unfit.paths) == 1 else ("are", "their", "them")
    text = (
        f"no file here shows whether {files} {are} of this log.  If not (`kcore dump` prints {their} records), "
        f"move {them} to another directory, with the files of the same name, and repair then: without {them} the "
        f"log ends at offset {unfit.end_offset}"
    )
    if unfit.reached_offset > unfit.end_offset:
        text += f", and by its checkpoints it has been as long as {unfit.reached_offset} once"
    return text


def _inside(plan: Plan, problem: Problem) -> Problem:
    """The problem with the file's path below the plan's directory."""
    return problem._replace(path=os.path.relpath(problem.path, plan.directory))


def _other_salvage(plans: Sequence[Plan]) -> dict[str, object] | None:
    """What the other salvage mode would keep in addition, over all partitions, and lose; None if nothing."""
    alternatives = [plan.alternative for plan in plans if plan.alternative is not None]
    if not alternatives:
        return None
    return {
        "salvage": alternatives[0].salvage,
        "batches": sum(other.batches for other in alternatives),
        "records": sum(other.records for other in alternatives),
        "bytes": sum(other.size for other in alternatives),
        **_lost_counts(_other_losses(plans)),
    }


def _other_losses(plans: Sequence[Plan]) -> list[Loss]:
    """What the other salvage mode would lose, over all partitions."""
    return [loss for plan in plans for loss in (plan.losses if plan.alternative is None else plan.alternative.losses)]


def _lost_counts(losses: Sequence[Loss]) -> dict[str, object]:
    return {
        "lostBytes": sum(loss.size for loss in losses),
        "lostRecords": sum(loss.records for loss in losses),
        "unreadableBytes": sum(loss.unreadable_size for loss in losses),
        "unreadableOffsets": _unreadable_offsets(losses),
    }


def _loss_event(loss: Loss) -> dict[str, object]:
    return {
        "type": "loss",
        "file": loss.path,
        "position": loss.position,
        "size": loss.size,
        "firstOffset": loss.first_offset,
        "lastOffset": loss.last_offset,
        "lastOffsetAtLeast": loss.last_offset_at_least,
        "batches": loss.batches,
        "records": loss.records,
        "unreadableBytes": loss.unreadable_size,
        "unreadableOffsets": loss.unreadable_offsets,
        "reason": loss.reason,
    }


def _loss_text(loss: Loss) -> str:
    if loss.last_offset is None:
        last = "?" if loss.last_offset_at_least is None else f"at least {loss.last_offset_at_least}"
        offsets = f"offsets {loss.first_offset} to {last}"
    elif loss.last_offset < loss.first_offset:
        offsets = "no offset"
    else:
        offsets = f"offsets {loss.first_offset}..{loss.last_offset}"
    where = f"{os.path.basename(loss.path)} from position {loss.position}"
    # What is wrong there is among the problems.
    reason = f", {loss.reason}" if loss.reason == AFTER_THE_CUT else ""
    return f"{where}, {offsets}{reason}: {_lost_text([loss])}"


def _unreadable_offsets(losses: Sequence[Loss]) -> int | None:
    """How many offsets the unreadable bytes may hold; None if that is unknown of some."""
    offsets = [loss.unreadable_offsets for loss in losses]
    return None if None in offsets else sum(count or 0 for count in offsets)


def _lost_text(losses: Sequence[Loss]) -> str:
    """What is lost: records as far as they can be read; bytes as far as they cannot, and how many offsets they held."""
    batches, unreadable = sum(loss.batches for loss in losses), sum(loss.unreadable_size for loss in losses)
    lost = []
    if batches:
        size = sum(loss.size for loss in losses) - unreadable
        records = counted(sum(loss.records for loss in losses), "record")
        lost.append(f"{records} in {counted(batches, 'batch', 'batches')} ({counted(size, 'byte')})")
    if unreadable:
        text = f"{counted(unreadable, 'byte')} that cannot be read"
        offsets = _unreadable_offsets([loss for loss in losses if not loss.missing_offsets])
        lost.append(text if offsets is None else f"{text} ({counted(offsets, 'offset')})")
    if missing := sum(loss.missing_offsets for loss in losses):
        lost.append(f"{counted(missing, 'offset')} in no file")
    return " and ".join(lost) or "no record"


def _action_event(action: Action) -> dict[str, object]:
    return {
        "type": "action",
        "action": action.what,
        "file": action.path,
        "size": log_files.size_of(action.path),
        "newSize": action.new_size,
        "keep": [list(stretch) for stretch in action.keep],
        "corrections": [
            {"position": correction.at, "bytes": correction.content.hex(), "reason": correction.text}
            for correction in action.corrections
        ],
        "reason": action.reason,
    }


def _outcome_lines(
    args: Arguments,
    path: str,
    result: str,
    plans: Sequence[Plan],
    aside: list[str],
    remaining: list[str],
    gaps: list[str],
    applied: bool,
) -> Iterator[str]:
    losses = [loss for plan in plans for loss in plan.losses]
    actions = sum(len(plan.actions) for plan in plans)
    beyond = sum(len(plan.beyond_repair) for plan in plans)
    if args.json:
        yield json_line(
            {
                "type": "summary",
                "problems": sum(len(plan.problems) for plan in plans),
                "losses": len(losses),
                **_lost_counts(losses),
                "otherSalvage": _other_salvage(plans),
                "actions": actions,
                "beyondRepair": beyond,
                "applied": applied,
                "result": result if applied else None,
                "keptAside": aside,
                "problemsLeft": remaining,
                "gapsLeft": gaps,
            }
        )
        return
    if any(problem.gaps for plan in plans for problem in plan.beyond_repair):
        yield _GAPS
    if not actions:
        what = "nothing can be repaired" if beyond else "nothing to repair"
        lost = f"; lost: {_lost_text(losses)}" if losses else ""
        no_copy = f"; {result} is not made" if args.apply and result != path else ""
        yield f"{path}: {what}{lost}{no_copy}"
        return
    if args.salvage == "keep-after" and losses:
        yield _KEEP_AFTER
    files = "1 file changes" if actions == 1 else f"{actions} files change"
    cost = f"{files}; lost: {_lost_text(losses)}" if losses else f"{files}; no record is lost"
    if not applied:
        other = next((plan.alternative for plan in plans if plan.alternative is not None), None)
        if other is not None:
            cost += f"; with --salvage {other.salvage} only {_lost_text(_other_losses(plans))}"
        where = f"makes a repaired copy, {result}" if result != path else "does it in place"
        yield f"{cost}.  Nothing was changed: --apply {where}."
        if result != path and _is_in_the_way(path, result):
            yield f"A broker refuses to start while {result} is in its data directory: choose another --output."
        return
    yield f"{cost}.  The repaired directory is {result}."
    yield from (f"kept aside: {name}" for name in aside)
    yield from (f"still wrong: {problem}" for problem in remaining)
    yield from (f"stays: {gap}" for gap in gaps)
