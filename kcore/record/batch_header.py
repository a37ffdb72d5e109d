"""Where the fields of a record batch's header are, in bytes from the batch's start, and the bits of its attributes.

For Python code that reads or writes single fields; csrc/record_batch.h and csrc/legacy_record.h have the same numbers.
Source: DefaultRecordBatch and LegacyRecord, Kafka.
"""

from __future__ import annotations

BASE_OFFSET_OFFSET = 0  # int64
LENGTH_OFFSET = 8  # int32: how many bytes come after it
#: Base offset and length: what must be read to know a batch's size, which is LOG_OVERHEAD + length.
LOG_OVERHEAD = 12
PARTITION_LEADER_EPOCH_OFFSET = 12  # int32
MAGIC_OFFSET = 16  # int8, the same place in every magic

# -- magic 2
CRC_OFFSET = 17  # uint32: CRC-32C of all bytes from ATTRIBUTES_OFFSET on
ATTRIBUTES_OFFSET = 21  # int16; the bits below are in its second byte
LAST_OFFSET_DELTA_OFFSET = 23  # int32
BASE_TIMESTAMP_OFFSET = 27  # int64
MAX_TIMESTAMP_OFFSET = 35  # int64
PRODUCER_ID_OFFSET = 43  # int64
PRODUCER_EPOCH_OFFSET = 51  # int16
BASE_SEQUENCE_OFFSET = 53  # int32
RECORDS_COUNT_OFFSET = 57  # int32
#: Size of the header; the records follow.
HEADER_SIZE = 61

# -- magic 0 and 1, where a message stands in place of a batch
LEGACY_CRC_OFFSET = 12  # uint32: CRC-32 of all bytes from MAGIC_OFFSET on
LEGACY_ATTRIBUTES_OFFSET = 17  # int8
LEGACY_TIMESTAMP_OFFSET = 18  # int64, magic 1 only
#: The smallest batch of each magic: a message with neither key nor value, a batch without records.
SMALLEST_SIZE = (26, 34, HEADER_SIZE)

# -- bits of the attributes
CODEC_MASK, LOG_APPEND_TIME, TRANSACTIONAL, CONTROL = 0x07, 0x08, 0x10, 0x20
