"""The mark of lost_records.py that a repair leaves in a log from which it removes records.

Without it nothing says any more that they were there: the repair lowers the checkpoints to the new end of the log.
"""

from __future__ import annotations

from collections.abc import Iterable

from kcore.errors import CorruptFile
from kcore.log.lost_records import read_mark

REASON = "records go that consumers could read: a broker of a cluster does not lead while another replica has them"


def first_lost_offset(directory: str, losses: Iterable[tuple[int, int | None]], log_start_offset: int) -> int | None:
    """What the new mark names.  None if no offset goes that is not below the log start, or if the mark that is there
    names none above.

    losses: the first offset and the last one of each stretch that goes; None: the last is not known.
    """
    lost = []
    for first, last in losses:
        first_readable = max(first, log_start_offset)
        if last is None or last >= first_readable:
            lost.append(first_readable)
    if not lost:
        return None
    try:
        before = read_mark(directory)
    except (CorruptFile, OSError):
        return None  # a broker takes it as one of offset 0
    return min(lost) if before is None or before > min(lost) else None
