"""Data directories for the tests of this room, and what is in them as plain Python."""

import random
from typing import NamedTuple

from kcore.log.log_config import LogConfig
from kcore.log.open_log import open_log
from kcore.record.record_batch_builder import RecordBatchBuilder
from kcore.spark.columns import arrow_schema, spark_schema

FIRST_TIMESTAMP = 1_700_000_000_000


def schema_of(*columns):
    """What a reader is given for these columns."""
    return arrow_schema(spark_schema(columns))


class Row(NamedTuple):
    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]


def make_records(topic, partition, count, *, seed=0, step_ms=1000):
    rng = random.Random(f"{topic}{partition}{seed}")
    return [
        Row(
            topic,
            partition,
            offset,
            FIRST_TIMESTAMP + offset * step_ms,
            rng.choice([None, b"", f"key-{offset % 17}".encode()]),
            rng.choice([None, b"", rng.randbytes(rng.randint(1, 200))]),
            rng.choice([[], [], [("source", b"web"), ("trace", None)]]),
        )
        for offset in range(count)
    ]


def write_partition(
    data_dir, rows, *, per_batch=10, segment_bytes=16 * 1024, index_interval_bytes=512, codecs=("none",)
):
    """A partition's directory with these rows, in several segments; the rows' offsets count from 0."""
    topic, partition = rows[0][:2]
    config = LogConfig(segment_bytes=segment_bytes, index_interval_bytes=index_interval_bytes)
    with open_log(data_dir / f"{topic}-{partition}", "a", config=config) as log:
        for at in range(0, len(rows), per_batch):
            builder = RecordBatchBuilder(compression=codecs[at // per_batch % len(codecs)])
            for row in rows[at : at + per_batch]:
                builder.append(row.value, row.key, timestamp=row.timestamp, headers=row.headers)
            log.append_as_leader(builder.build())
    return rows
