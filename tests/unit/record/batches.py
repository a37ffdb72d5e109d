"""Random batches for the tests of this room and of the validator, made by the slow model."""

import random
import struct

import google_crc32c

from tests.reference import record_batch as model


def random_record(rng: random.Random, offset: int, timestamp: int) -> model.Record:
    def data(sizes):
        size = rng.choice(sizes)
        return None if size < 0 else rng.randbytes(size)

    return model.Record(
        offset,
        timestamp,
        data([-1, 0, 1, 8, 63, 64, 200]),
        data(rng.choice([[-1, 0, 1, 50, 100]] * 30 + [[8191, 8192]])),
        [
            (rng.choice([b"", b"a", "ключ".encode(), b"\xff\xfe"]), data([-1, 0, 5]))
            for _ in range(rng.choice([0, 0, 3]))
        ],
    )


def random_batch(
    rng: random.Random, base_offset: int = 0, *, gaps: bool = False, codec: str | None = None
) -> model.Batch:
    """With gaps the offsets are those of a cleaned log, else 0, 1, 2, ..."""
    count = rng.choice([1, 2, 3, 10, 70])
    deltas = sorted(rng.sample(range(3 * count), count)) if gaps else range(count)
    start = rng.choice([0, 1_700_000_000_000])
    records = [
        random_record(rng, base_offset + delta, start + rng.randint(-5, 10**6) if start else -1) for delta in deltas
    ]
    return model.make_batch(
        records,
        codec=codec or rng.choice(model.CODECS),
        base_offset=base_offset,
        last_offset_delta=deltas[-1] + (rng.randint(0, 2) if gaps else 0),
        leader_epoch=rng.choice([-1, 0, 7]),
    )


def as_model(record) -> model.Record:
    """A kcore Record in the model's words."""
    headers = [(name.encode("utf-8", "surrogateescape"), value) for name, value in record.headers]
    return model.Record(record.offset, record.timestamp, record.key, record.value, headers)


def reseal(data: bytes) -> bytes:
    """model.reseal, but fast enough for thousands of broken batches."""
    crc = google_crc32c.value(data[model.CRC_FROM :])
    return data[: model.CRC_FROM - 4] + struct.pack(">I", crc) + data[model.CRC_FROM :]
