"""The golden data: log directories that Apache Kafka wrote, and what Kafka reads in them.

A test that needs golden data and does not find it fails; nothing here makes the data anew.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

_GOLDEN = Path(__file__).resolve().parent / "golden"


def golden_dir(name: str = "kafka-log") -> Path:
    """The directory that holds `data/` and `expected.json`.  Tests only read it; copy it before changing anything."""
    path = _GOLDEN / name
    assert (path / "data").is_dir(), f"golden data is missing: {path / 'data'}"
    return path


def data_dir(name: str = "kafka-log") -> Path:
    """The log directory itself, what Kafka calls log.dirs."""
    return golden_dir(name) / "data"


def golden_file(name: str) -> Path:
    """A single file below tests/golden."""
    path = _GOLDEN / name
    assert path.is_file(), f"golden data is missing: {path}"
    return path


def partition_dir(partition: str, name: str = "kafka-log") -> Path:
    path = data_dir(name) / partition
    assert path.is_dir(), f"golden data is missing: {path}"
    return path


@cache
def expected(name: str = "kafka-log") -> dict[str, Any]:
    """expected.json, parsed once.  Shared by all tests: do not change what you get."""
    with open(golden_dir(name) / "expected.json", encoding="utf-8") as file:
        return json.load(file)


def partitions(name: str = "kafka-log") -> list[str]:
    """Names of the partition directories that expected.json describes."""
    return sorted(expected(name)["partitions"])


def files(suffix: str, name: str = "kafka-log") -> list[tuple[str, str]]:
    """(partition, file name) of every described file that ends with suffix, e.g. ".log"."""
    described = [
        (partition, file)
        for partition, entry in sorted(expected(name)["partitions"].items())
        for file in sorted(entry["files"])
        if file.endswith(suffix)
    ]
    assert described, f"no *{suffix} in the golden data"
    return described


def as_hex(data: bytes | None) -> str | None:
    return None if data is None else data.hex()


#: What `kcore dump --json` calls the names of DumpLogSegments that are more than one word.
_JSON_NAMES = {
    "baseOffset": "base_offset",
    "lastOffset": "last_offset",
    "baseSequence": "base_sequence",
    "lastSequence": "last_sequence",
    "producerId": "producer_id",
    "producerEpoch": "producer_epoch",
    "partitionLeaderEpoch": "partition_leader_epoch",
    "isTransactional": "is_transactional",
    "isControl": "is_control",
    "deleteHorizonMs": "delete_horizon_ms",
    "compresscodec": "compress_codec",
    "isvalid": "is_valid",
    "keySize": "key_size",
    "valueSize": "value_size",
    "headerKeys": "header_keys",
    "endTxnMarker": "end_txn_marker",
    "coordinatorEpoch": "coordinator_epoch",
    "currentTxnFirstOffset": "current_txn_first_offset",
    "lastTimestamp": "last_timestamp",
    "firstSequence": "first_sequence",
    "offsetDelta": "offset_delta",
    "firstOffset": "first_offset",
    "lastStableOffset": "last_stable_offset",
}


def with_json_names(described: Any) -> Any:
    """What DumpLogSegments printed, under the names of `kcore dump --json`."""
    if isinstance(described, list):
        return [with_json_names(item) for item in described]
    if isinstance(described, dict):
        return {_JSON_NAMES.get(name, name): with_json_names(value) for name, value in described.items()}
    return described


def described_header(batch: Any, compression: str, is_valid: bool) -> dict[str, Any]:
    """A batch's header under the names that DumpLogSegments gives it: what "batches" has but for the records.
    batch: ours or the model's, which name all fields alike but for the codec."""
    return {
        "baseOffset": batch.base_offset,
        "lastOffset": batch.last_offset,
        "count": batch.count,
        "baseSequence": batch.base_sequence,
        "lastSequence": batch.last_sequence,
        "producerId": batch.producer_id,
        "producerEpoch": batch.producer_epoch,
        "partitionLeaderEpoch": batch.leader_epoch,
        "isTransactional": batch.is_transactional,
        "isControl": batch.is_control,
        "deleteHorizonMs": batch.delete_horizon_ms,
        "position": batch.position,
        batch.timestamp_type: batch.max_timestamp,
        "size": batch.size,
        "magic": batch.magic,
        "compresscodec": compression,
        "crc": batch.crc,
        "isvalid": is_valid,
    }


def expected_header(batch: dict[str, Any]) -> dict[str, Any]:
    """What DumpLogSegments printed of a batch, without its records."""
    return {name: value for name, value in batch.items() if name != "records"}


def record_extent(record: Any) -> tuple[int, int, int, int]:
    """Offset, timestamp, and the sizes of key and value, -1 for null."""
    sizes = (-1 if data is None else len(data) for data in (record.key, record.value))
    return (record.offset, record.timestamp, *sizes)  # type: ignore[return-value]


def expected_extents(batch: dict[str, Any], timestamp_type: str) -> list[tuple[int, int, int, int]]:
    """record_extent() of each record that DumpLogSegments printed of a batch."""
    return [(r["offset"], r[timestamp_type], r["keySize"], r["valueSize"]) for r in batch["records"]]


def consumed(record: Any, timestamp_type: str, leader_epoch: int) -> list[Any]:
    """A record as "consumer" lists what Kafka's own consumer read."""
    names = [name.encode("utf-8", "surrogateescape") if isinstance(name, str) else name for name, _ in record.headers]
    values = [value for _, value in record.headers]
    return [
        record.offset,
        record.timestamp,
        timestamp_type,
        as_hex(record.key),
        as_hex(record.value),
        [[as_hex(name), as_hex(value)] for name, value in zip(names, values, strict=True)],
        leader_epoch,
    ]


def expected_file(partition: str, file: str, name: str = "kafka-log") -> dict[str, Any]:
    """What DumpLogSegments printed for one file."""
    return expected(name)["partitions"][partition]["files"][file]
