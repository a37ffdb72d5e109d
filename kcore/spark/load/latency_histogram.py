"""LatencyHistogram: counts of latencies in fixed buckets, so that those of many tasks can be added up.

Each power of two is cut into 32 buckets of equal width; below 64 ns a bucket is one nanosecond.  So a bucket is at
most 1/32 of its values wide, and its middle at most 1/64 (1.6 %) away from any of them.  The idea is HdrHistogram's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

_SUB_BITS = 5
_SUB_BUCKETS = 1 << _SUB_BITS
#: Longer ones (73 minutes) are counted as this.
HIGHEST_NS = (1 << 42) - 1


def bucket_of(ns: int) -> int:
    """The bucket of one latency; one below 0 counts as 0."""
    ns = min(max(ns, 0), HIGHEST_NS)
    shift = max(ns.bit_length() - _SUB_BITS - 1, 0)
    return shift * _SUB_BUCKETS + (ns >> shift)


def buckets_of(ns: np.ndarray) -> np.ndarray:
    """bucket_of() for each of an int64 array."""
    ns = np.clip(ns, 0, HIGHEST_NS)
    # frexp's exponent is the number of bits; exact below 2**53.
    shift = np.maximum(np.frexp(ns.astype(np.float64))[1].astype(np.int64) - _SUB_BITS - 1, 0)
    buckets: np.ndarray = shift * _SUB_BUCKETS + (ns >> shift)
    return buckets


def bucket_bounds(bucket: int) -> tuple[int, int]:
    """The least and the greatest latency that a bucket counts, ns."""
    shift = max(bucket // _SUB_BUCKETS - 1, 0)
    least = (bucket - shift * _SUB_BUCKETS) << shift
    return least, least + (1 << shift) - 1


BUCKETS = bucket_of(HIGHEST_NS) + 1


class Percentile(NamedTuple):
    """A latency that is ns at most error_ns off."""

    ns: float
    error_ns: float


class LatencyHistogram:
    """Not thread-safe.  `counts`, an int64 array of BUCKETS numbers, is its whole state."""

    def __init__(self, counts: np.ndarray | Sequence[int] | None = None) -> None:
        """counts: taken over, not copied, if it is such an array.  ValueError for another number of buckets."""
        self.counts = np.zeros(BUCKETS, np.int64) if counts is None else np.asarray(counts, np.int64)
        if self.counts.shape != (BUCKETS,):
            raise ValueError(f"a histogram has {BUCKETS} buckets, not {self.counts.shape}")

    def record(self, ns: int) -> None:
        self.counts[bucket_of(ns)] += 1

    def record_all(self, ns: np.ndarray) -> None:
        """Each of an int64 array."""
        self.counts += np.bincount(buckets_of(ns), minlength=BUCKETS)

    def merge(self, other: LatencyHistogram) -> None:
        """Take in what the other counted."""
        self.counts += other.counts

    def __len__(self) -> int:
        """How many latencies were recorded."""
        return int(self.counts.sum())

    def percentile(self, percent: float) -> Percentile | None:
        """The smallest latency that at least so many percent of all do not exceed; None where there is none.

        Raises ValueError outside 0..100.
        """
        if not 0 <= percent <= 100:
            raise ValueError(f"percentile {percent} is not within 0 and 100")
        count = len(self)
        if not count:
            return None
        rank = max(1, int(np.ceil(count * percent / 100)))
        bucket = int(np.searchsorted(np.cumsum(self.counts), rank))
        least, greatest = bucket_bounds(bucket)
        return Percentile((least + greatest) / 2, (greatest - least) / 2)
