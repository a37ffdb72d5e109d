"""The entries of a .index or .timeindex file, whether they are right or not."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple

from kcore.inspect import log_files
from kcore.log.log_file_names import TIME_INDEX_SUFFIX

if TYPE_CHECKING:
    import numpy as np


class IndexContents(NamedTuple):
    """A .index or .timeindex.  entries: fields "offset" (relative) and "position" or "timestamp".  empty: how many
    slots of zeros follow them.  rest: how many bytes at the end are not a whole slot."""

    entries: np.ndarray
    empty: int
    rest: int


def read_index(path: str) -> IndexContents:
    """Raises OSError."""
    import numpy as np

    from kcore.record.layout import OFFSET_INDEX_SLOT, TIME_INDEX_SLOT

    dtype = TIME_INDEX_SLOT if path.endswith(TIME_INDEX_SUFFIX) else OFFSET_INDEX_SLOT
    with log_files.open_file(path) as file:
        size = os.fstat(file.fileno()).st_size
        # The empty slots are a hole of 10 MiB in each index of a running broker; it is not read.
        data_end = max((end for _, end in log_files.data_stretches(file.fileno(), 0, size)), default=0)
        data_end = min(-(-data_end // dtype.itemsize) * dtype.itemsize, size)
        file.seek(0)
        data = file.read(data_end)
    if len(data) < data_end:  # cut while we read
        size = len(data)
    slots, rest = divmod(size, dtype.itemsize)
    # Up to the last slot that has a byte which is not zero.
    count = min(-(-len(data.rstrip(b"\0")) // dtype.itemsize), slots)
    return IndexContents(np.frombuffer(data, dtype, count), slots - count, rest)
