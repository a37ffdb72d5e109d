"""Timestamps that ListOffsets gives a meaning of their own.  Source: ListOffsetsRequest and ListOffsets.json, Kafka."""

from __future__ import annotations

#: The end of what the reader may read: last stable offset, high watermark or log end offset.
LATEST_TIMESTAMP = -1
#: The log start offset.
EARLIEST_TIMESTAMP = -2
#: The record with the largest timestamp.
MAX_TIMESTAMP = -3
#: The log start offset on this broker's disk; without tiered storage the log start offset.
EARLIEST_LOCAL_TIMESTAMP = -4
#: Last offset in tiered storage, which there is not here.
LATEST_TIERED_TIMESTAMP = -5
#: First offset that is not in tiered storage yet.
EARLIEST_PENDING_UPLOAD_TIMESTAMP = -6
