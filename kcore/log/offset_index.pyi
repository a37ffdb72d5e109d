"""OffsetIndex: relative offset -> position, over a mapped .index file (IDX)."""

import numpy as np

from kcore.log.abstract_index import AbstractIndex

class OffsetIndex(AbstractIndex):
    """8-byte big-endian entries {int32 relative offset, int32 position}.  One writer; lookups need no lock."""

    @property
    def last_offset(self) -> int: ...  # base_offset when empty
    @property
    def is_full(self) -> bool: ...
    def lookup(self, target_offset: int) -> tuple[int, int]: ...  # (offset, position); (base_offset, 0) for none
    def entry(self, n: int) -> tuple[int, int]: ...
    def append(self, offset: int, position: int) -> None: ...
    def fetch_upper_bound_offset(self, position: int, size: int) -> tuple[int, int] | None: ...
    def truncate_to(self, offset: int) -> None: ...
    def sanity_check(self) -> None: ...  # CorruptIndex
    def to_numpy(self) -> np.ndarray: ...  # structured: offset int64 (absolute), position int32
