"""The lag of a stream: how many records it has still to read."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import StreamingQueryProgress


def lag(progress: StreamingQueryProgress | None) -> dict[str, dict[str, int]]:
    """Offsets that were there and not yet read after the batch, {"topic": {"0": 23}}, of all sources of a query whose
    offsets have that form: kcore's and the connector's.

    progress: query.lastProgress, or what a listener gets; None, which lastProgress is before the first batch,
    gives {}.
    """
    found: dict[str, dict[str, int]] = {}
    for source in progress.sources if progress is not None else ():
        latest, end = _offsets(source.latestOffset), _offsets(source.endOffset)
        for topic, partitions in latest.items():
            for partition, offset in partitions.items():
                behind = max(0, offset - end.get(topic, {}).get(partition, 0))
                found.setdefault(topic, {})[partition] = behind
    return found


def _offsets(text: str | None) -> dict[str, dict[str, int]]:
    try:
        told = json.loads(text or "{}")
    except ValueError:
        return {}
    if not isinstance(told, dict) or not all(isinstance(partitions, dict) for partitions in told.values()):
        return {}
    return told
