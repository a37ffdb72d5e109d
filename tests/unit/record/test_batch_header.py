"""kcore.record.batch_header beside the C headers and beside a batch."""

import re
import struct
from pathlib import Path

import pytest

from kcore.record import batch_header
from kcore.record.crc32c import crc32c
from kcore.record.memory_records import MemoryRecords
from kcore.record.record_batch_builder import RecordBatchBuilder

CSRC = Path(__file__).parents[3] / "csrc"


@pytest.mark.parametrize(
    ("header", "name_in_c", "name"),
    [
        *(
            ("record_batch.h", f"KC_{name}", name)
            for name in ("LOG_OVERHEAD", "MAGIC_OFFSET", "CRC_OFFSET", "ATTRIBUTES_OFFSET", "MAX_TIMESTAMP_OFFSET")
        ),
        ("record_batch.h", "KC_BATCH_HEADER_SIZE", "HEADER_SIZE"),
        *(
            ("record_batch.h", f"KC_ATTR_{name}", name)
            for name in ("CODEC_MASK", "LOG_APPEND_TIME", "TRANSACTIONAL", "CONTROL")
        ),
        *(
            ("legacy_record.h", f"KC_{name}", name)
            for name in ("LEGACY_CRC_OFFSET", "LEGACY_ATTRIBUTES_OFFSET", "LEGACY_TIMESTAMP_OFFSET")
        ),
    ],
)
def test_a_position_is_the_one_of_the_c_header(header, name_in_c, name):
    number = re.search(rf"\b{name_in_c} = (\w+)", (CSRC / header).read_text())
    assert number, f"{header} has no {name_in_c}"
    assert getattr(batch_header, name) == int(number[1], 0)


def test_each_field_of_a_batch_is_at_its_position():
    builder = RecordBatchBuilder(
        base_offset=70, producer_id=6, producer_epoch=5, base_sequence=4, is_transactional=True, leader_epoch=3
    )
    for n in range(3):
        builder.append(b"value", timestamp=1_000 + n)
    data = bytes(builder.build())
    (batch,) = MemoryRecords(data).batches

    def field(name, form):
        return struct.unpack_from(form, data, getattr(batch_header, name))[0]

    assert field("BASE_OFFSET_OFFSET", ">q") == batch.base_offset == 70
    assert field("LENGTH_OFFSET", ">i") == len(data) - batch_header.LOG_OVERHEAD
    assert field("PARTITION_LEADER_EPOCH_OFFSET", ">i") == batch.leader_epoch == 3
    assert field("MAGIC_OFFSET", ">b") == 2
    assert field("CRC_OFFSET", ">I") == crc32c(data[batch_header.ATTRIBUTES_OFFSET :])
    assert field("ATTRIBUTES_OFFSET", ">h") == batch_header.TRANSACTIONAL
    assert field("LAST_OFFSET_DELTA_OFFSET", ">i") == 2
    assert field("BASE_TIMESTAMP_OFFSET", ">q") == 1_000
    assert field("MAX_TIMESTAMP_OFFSET", ">q") == batch.max_timestamp == 1_002
    assert field("PRODUCER_ID_OFFSET", ">q") == batch.producer_id == 6
    assert field("PRODUCER_EPOCH_OFFSET", ">h") == batch.producer_epoch == 5
    assert field("BASE_SEQUENCE_OFFSET", ">i") == batch.base_sequence == 4
    assert field("RECORDS_COUNT_OFFSET", ">i") == batch.count == 3


@pytest.mark.parametrize("magic", [0, 1])
def test_the_smallest_message_of_a_magic_has_neither_key_nor_value(magic):
    builder = RecordBatchBuilder(magic=magic)
    builder.append(None, timestamp=-1)
    assert len(builder.build()) == batch_header.SMALLEST_SIZE[magic]
