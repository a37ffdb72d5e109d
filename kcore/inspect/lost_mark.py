"""The mark of lost_records.py that a repair leaves in a log from which it removes records.

Without it nothing says any more that they were there: the repair lowers the checkpoints to the new end of the log.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from kcore.errors import CorruptFile
from kcore.log.lost_records import read_mark

if TYPE_CHECKING:
    from kcore.inspect.repair_plan import Loss

REASON = "records go that consumers could read: a broker of a cluster does not lead while another replica has them"


def first_lost_offset(directory: str, losses: Iterable[Loss], log_start_offset: int) -> int | None:
    """What the new mark names.  None if no offset goes that is not below the log start, or if the mark that is there
    names none above."""
    lost = [
        max(loss.first_offset, log_start_offset)
        for loss in losses
        if loss.last_offset is None or loss.last_offset >= max(loss.first_offset, log_start_offset)
    ]
    if not lost:
        return None
    try:
        before = read_mark(directory)
    except (CorruptFile, OSError):
        return None  # a broker takes it as one of offset 0
    return min(lost) if before is None or before > min(lost) else None
