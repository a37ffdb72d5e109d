"""NumPy dtypes of what csrc lays out; batch_header.py has the bits of a batch's attributes.

Imported only where an array is needed.
"""

import numpy as np

#: A slot of a .index and of a .timeindex; offsets count from the segment's base offset.
OFFSET_INDEX_SLOT = np.dtype([("offset", ">i4"), ("position", ">i4")])
TIME_INDEX_SLOT = np.dtype([("timestamp", ">i8"), ("offset", ">i4")])

#: One row of a BatchTable: kc_batch of csrc/record_batch.h, field for field.
BATCH_DTYPE = np.dtype(
    {
        "names": [
            "position",
            "base_offset",
            "last_offset",
            "base_timestamp",
            "max_timestamp",
            "producer_id",
            "size",
            "leader_epoch",
            "crc",
            "base_sequence",
            "count",
            "attributes",
            "producer_epoch",
            "magic",
        ],
        "formats": ["i8"] * 6 + ["i4", "i4", "u4", "i4", "i4", "i2", "i2", "i1"],
        "offsets": [0, 8, 16, 24, 32, 40, 48, 52, 56, 60, 64, 68, 70, 72],
        "itemsize": 88,
    }
)
