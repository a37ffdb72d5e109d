"""Carrying out a repair plan: in a copy, or in the directory itself.

In the directory itself every byte that is removed is first saved in a file whose name ends in .repair-cut; neither
Kafka nor kcore reads such files.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence

from kcore.common.file import read_file, rename, sync_path, truncate_file, write_atomically
from kcore.inspect.directories import data_dir_of
from kcore.inspect.repair_plan import Action, Plan, copy_entry
from kcore.log.clean_shutdown import remove_clean_shutdown
from kcore.log.log_file_names import CLEAN_SHUTDOWN_FILE, LOCK_FILE

ASIDE_SUFFIX = ".repair-cut"


def apply_to_copy(path: str, plans: Sequence[Plan], output: str) -> None:
    """Make a mended copy of `path` with the name `output`, which must not exist; it gets that name when it is complete.

    plans: what plan_repair() returned for this path.  Nobody may write to `path` meanwhile (closed_directory()).
    Raises OSError."""
    partial = f"{output}.partial"
    by_directory = {plan.directory: plan for plan in plans}
    os.mkdir(partial)
    try:
        _copy_directory(path, by_directory, partial)
        os.replace(partial, output)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    sync_path(os.path.dirname(output) or ".")


def _copy_directory(source: str, plans: dict[str, Plan], target: str) -> None:
    actions = {action.path: action for action in plans[source].actions}
    for name in sorted(os.listdir(source)):
        entry = os.path.join(source, name)
        if entry in plans and os.path.isdir(entry):
            os.mkdir(os.path.join(target, name))
            _copy_directory(entry, plans, os.path.join(target, name))
        elif entry not in actions and name != LOCK_FILE:
            copy_entry(entry, os.path.join(target, name))
    for action in plans[source].actions:
        action.write_to(os.path.join(target, os.path.basename(action.path)))
    sync_path(target)


def apply_in_place(path: str, plans: Sequence[Plan]) -> list[str]:
    """Mend the directory itself; returns the paths of the *.repair-cut files, which have every byte that was removed.

    plans: what plan_repair(path, in_place=True) returned.  The caller holds closed_directory(path, write=True).  A
    crash leaves a directory without the marker of a clean stop; it can be repaired again.  Raises OSError.
    """
    data_dir = data_dir_of(path)
    marker = os.path.join(data_dir, CLEAN_SHUTDOWN_FILE)
    marker_content = None
    if os.path.exists(marker):
        marker_content = read_file(marker)
        remove_clean_shutdown(data_dir)
    aside: list[str] = []
    for plan in plans:
        for action in plan.actions:
            aside.extend(_change(action))
        if plan.actions:
            sync_path(plan.directory)
    if marker_content is not None:
        write_atomically(marker, marker_content)
    return aside


def _change(action: Action) -> Iterator[str]:
    """Do one action on the file itself; yields the names of the files that keep the removed bytes."""
    path = action.path
    if action.what == "remove":
        kept = _free_name(path)
        rename(path, kept)
        yield kept
        return
    if action.what in ("correct", "cut", "drop"):
        yield from _keep_aside(action)
        sync_path(os.path.dirname(path) or ".")  # the saved bytes must be on the disk before they are cut off
    elif os.path.lexists(path) and not os.path.isfile(path):
        kept = _free_name(path)
        rename(path, kept)
        yield kept
    elif action.content is not None and os.path.exists(path):
        kept = _free_name(path)
        shutil.copy2(path, kept)
        yield kept
    if action.what == "cut":
        truncate_file(path, action.new_size or 0)
        action.correct_in_place()
        sync_path(path)
    elif action.what == "correct":
        action.correct_in_place()
    else:
        action.write_to(path)


def _keep_aside(action: Action) -> Iterator[str]:
    """Save the stretches between those that stay, and the fields that are corrected, each in a file of its own."""
    bounds = [0, *(edge for stretch in action.keep for edge in stretch), action.size]
    fields = [(correction.at, correction.at + len(correction.content)) for correction in action.corrections]
    for start, end in [*zip(bounds[0::2], bounds[1::2], strict=True), *fields]:
        if start < end:
            kept = _free_name(f"{action.path}.{start}-{end}")
            Action("drop", action.path, "", keep=[(start, end)]).write_to(kept)
            yield kept


def _free_name(path: str) -> str:
    name, n = f"{path}{ASIDE_SUFFIX}", 1
    while os.path.lexists(name):
        n += 1
        name = f"{path}.{n}{ASIDE_SUFFIX}"
    return name
