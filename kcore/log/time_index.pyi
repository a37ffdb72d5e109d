"""TimeIndex: timestamp -> relative offset, over a mapped .timeindex file (IDX)."""

import numpy as np

from kcore.log.abstract_index import AbstractIndex

class TimeIndex(AbstractIndex):
    """12-byte big-endian entries {int64 timestamp, int32 relative offset}.  One writer; lookups need no lock."""

    @property
    def is_full(self) -> bool: ...
    def lookup(self, timestamp: int) -> tuple[int, int]: ...  # (timestamp, offset); (-1, base_offset) for none
    def entry(self, n: int) -> tuple[int, int]: ...
    def maybe_append(self, timestamp: int, offset: int, *, skip_full_check: bool = ...) -> None: ...  # IDX-07
    def truncate_to(self, offset: int) -> None: ...
    def sanity_check(self) -> None: ...  # CorruptIndex
    def to_numpy(self) -> np.ndarray: ...  # structured: timestamp int64, offset int64 (absolute)
