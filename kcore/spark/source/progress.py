"""The lag of a stream: how many records it still has to read."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import StreamingQueryProgress


def lag(progress: StreamingQueryProgress | None) -> dict[str, dict[str, int]]:
    """How many offsets of each partition were not yet read after the batch, {"topic": {"0": 23}}.  It includes all
    sources of the query whose offsets have this form: kcore's and the connector's.

    progress: query.lastProgress, or the progress that a listener receives.  Returns {} for None, the value of
    lastProgress before the first batch.
    """
    lag_by_partition: dict[str, dict[str, int]] = {}
    for source in progress.sources if progress is not None else ():
        latest, end = _offsets(source.latestOffset), _offsets(source.endOffset)
        for topic, partitions in latest.items():
            for partition, offset in partitions.items():
                lag_of_partition = max(0, offset - end.get(topic, {}).get(partition, 0))
                lag_by_partition.setdefault(topic, {})[partition] = lag_of_partition
    return lag_by_partition


def _offsets(text: str | None) -> dict[str, dict[str, int]]:
    try:
        offsets = json.loads(text or "{}")
    except ValueError:
        return {}
    if not isinstance(offsets, dict) or not all(isinstance(partitions, dict) for partitions in offsets.values()):
        return {}
    return offsets
