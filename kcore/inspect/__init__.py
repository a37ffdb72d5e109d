"""Reading the files of logs, valid or damaged, without opening a log: dump, verify, diff, repair, reindex as a library.

The names in __all__ are public; docs/inspect.md has an example of each.  The commands of `kcore` and the jobs of
kcore.spark are arguments, tasks and printing around them.  Nothing here opens a log, and only apply_in_place(),
apply_to_copy() and write_index() write.  Paths are str.  The names load on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kcore.inspect.batch_reader import Damage as Damage
    from kcore.inspect.batch_reader import Tail as Tail
    from kcore.inspect.batch_reader import read_batches as read_batches
    from kcore.inspect.directories import closed_directory as closed_directory
    from kcore.inspect.directories import partitions_under as partitions_under
    from kcore.inspect.dump_events import Wanted as Wanted
    from kcore.inspect.dump_events import events_of as events_of
    from kcore.inspect.index_files import IndexFile as IndexFile
    from kcore.inspect.index_files import examine_index_files as examine_index_files
    from kcore.inspect.index_files import write_index as write_index
    from kcore.inspect.log_files import files_under as files_under
    from kcore.inspect.partition_checks import Problem as Problem
    from kcore.inspect.repair import apply_in_place as apply_in_place
    from kcore.inspect.repair import apply_to_copy as apply_to_copy
    from kcore.inspect.repair_losses import Loss as Loss
    from kcore.inspect.repair_plan import Action as Action
    from kcore.inspect.repair_plan import Plan as Plan
    from kcore.inspect.repair_plan import plan_repair as plan_repair
    from kcore.inspect.replica_diff import PartitionDiff as PartitionDiff
    from kcore.inspect.replica_diff import compare as compare
    from kcore.inspect.replica_diff import paired_partitions as paired_partitions
    from kcore.inspect.segment_scan import ScannedSegment as ScannedSegment
    from kcore.inspect.segment_scan import scan_segment as scan_segment
    from kcore.inspect.verifier import Summary as Summary
    from kcore.inspect.verifier import verify as verify

_HOME = {
    "Action": "repair_plan",
    "Damage": "batch_reader",
    "IndexFile": "index_files",
    "Loss": "repair_losses",
    "PartitionDiff": "replica_diff",
    "Plan": "repair_plan",
    "Problem": "partition_checks",
    "ScannedSegment": "segment_scan",
    "Summary": "verifier",
    "Tail": "batch_reader",
    "Wanted": "dump_events",
    "apply_in_place": "repair",
    "apply_to_copy": "repair",
    "closed_directory": "directories",
    "compare": "replica_diff",
    "events_of": "dump_events",
    "examine_index_files": "index_files",
    "files_under": "log_files",
    "paired_partitions": "replica_diff",
    "partitions_under": "directories",
    "plan_repair": "repair_plan",
    "read_batches": "batch_reader",
    "scan_segment": "segment_scan",
    "verify": "verifier",
    "write_index": "index_files",
}

__all__ = list(_HOME)


def __getattr__(name: str) -> Any:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module 'kcore.inspect' has no attribute {name!r}")
    value = getattr(import_module(f"kcore.inspect.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
