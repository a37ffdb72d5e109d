"""Which partition a record goes to, as Kafka's Java producer decides by default, for whole columns."""

import numpy as np

from kcore.record.columns import BinaryColumn

def murmur2(key: bytes) -> int: ...  # in [0, 2**32)
def partition_for_key(key: bytes, partitions: int) -> int: ...  # ValueError without partitions
def assign_partitions(
    count: int,
    partitions: int,
    key: BinaryColumn | None = ...,
    assigned: np.ndarray | None = ...,  # int32, negative: none
    turn: int = ...,
) -> tuple[np.ndarray, int]:
    """(int32 partition of each record, the turn of the next one without a key): as assigned, else by the key, else in
    turn.  GIL released.  ValueError for a partition number of `partitions` or more, naming the record."""

def group_by_partition(partition: np.ndarray, partitions: int) -> tuple[np.ndarray, np.ndarray]:
    """(int64 starts, int64 order): order[starts[p] : starts[p + 1]] are the numbers of partition p's records, in their
    order.  GIL released.  ValueError for a partition outside [0, partitions)."""
