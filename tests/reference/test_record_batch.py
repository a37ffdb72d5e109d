"""The model against what Kafka wrote and what Kafka read."""

import random
import struct

import pytest

from tests import golden_data
from tests.reference import record_batch as model


def test_crc32c_equals_the_published_vectors():
    # RFC 3720, B.4
    assert model.crc32c(b"123456789") == 0xE3069283
    assert model.crc32c(bytes(32)) == 0x8A9136AA
    assert model.crc32c(b"\xff" * 32) == 0x62A8AB43
    assert model.crc32c(bytes(range(32))) == 0x46DD794E
    assert model.crc32c(b"56789", model.crc32c(b"1234")) == 0xE3069283


@pytest.mark.parametrize(
    ("number", "encoded"),
    [(0, "00"), (-1, "01"), (1, "02"), (63, "7e"), (-64, "7f"), (64, "8001"), (-65, "8101"), (2**31 - 1, "feffffff0f")],
)
def test_varints_have_known_bytes(number, encoded):
    assert model.encode_varint(number).hex() == encoded
    assert model.decode_varint(bytes.fromhex(encoded), 0) == (number, len(encoded) // 2)


@pytest.mark.parametrize(("partition", "file"), golden_data.files(".log"))
def test_the_model_reads_what_kafka_dumped(partition, file):
    data = (golden_data.partition_dir(partition) / file).read_bytes()
    expected = golden_data.expected_file(partition, file)
    batches = model.decode_batches(data)
    assert sum(batch.size for batch in batches) == len(data) == expected["size"]
    assert len(batches) == len(expected["batches"])
    for batch, described in zip(batches, expected["batches"], strict=True):
        assert golden_data.described_header(batch, batch.codec, True) == golden_data.expected_header(described)
        extents = [golden_data.record_extent(record) for record in batch.records]
        assert extents == golden_data.expected_extents(described, batch.timestamp_type)


@pytest.mark.parametrize("partition", [name for name in golden_data.partitions() if name.startswith("g-")])
def test_the_model_reads_what_kafkas_consumer_got(partition):
    consumer = golden_data.expected()["partitions"][partition]["consumer"]["read_uncommitted"]
    seen = [
        golden_data.consumed(record, batch.timestamp_type, batch.leader_epoch)
        for path in sorted(golden_data.partition_dir(partition).glob("*.log"))
        for batch in model.decode_batches(path.read_bytes())
        if not batch.is_control
        for record in batch.records
    ]
    assert [row for row in seen if row[0] >= consumer["beginning_offset"]] == consumer["records"]


@pytest.mark.parametrize("partition", ["g-none-0", "g-idempotent-0", "g-txn-0", "g-epochs-0", "g-compact-0"])
def test_encoding_what_was_decoded_gives_kafkas_bytes(partition):
    for path in sorted(golden_data.partition_dir(partition).glob("*.log")):
        data = path.read_bytes()
        for batch in model.decode_batches(data):
            original = data[batch.position : batch.position + batch.size]
            assert model.encode_batch(batch) == original, f"{path.name} at {batch.position}"


@pytest.mark.parametrize("codec", model.CODECS)
def test_what_is_encoded_comes_back(codec):
    seed = random.randrange(2**32)
    rng = random.Random(seed)
    records = [
        model.Record(
            100 + n,
            1_700_000_000_000 + rng.randint(-5000, 5000),
            rng.choice([None, b"", rng.randbytes(rng.randint(1, 40))]),
            rng.choice([None, b"", rng.randbytes(rng.randint(1, 400))]),
            [(rng.randbytes(rng.randint(0, 5)), rng.choice([None, b"", b"v"])) for _ in range(rng.randint(0, 3))],
        )
        for n in range(50)
    ]
    batch = model.make_batch(records, codec=codec, producer_id=7, producer_epoch=1, base_sequence=2**31 - 10)
    decoded = model.decode_batch(model.encode_batch(batch))
    assert decoded.records == records, f"seed={seed}"
    assert (decoded.codec, decoded.base_offset, decoded.last_offset) == (codec, 100, 149), f"seed={seed}"
    assert decoded.last_sequence == 39, f"seed={seed}"


def test_every_flipped_byte_under_the_crc_is_malformed():
    data = model.encode_batch(model.make_batch([model.Record(0, 5, b"k", b"v"), model.Record(1, 6, None, b"w")]))
    for at in range(model.CRC_FROM - 4, len(data)):
        broken = data[:at] + bytes([data[at] ^ 0x10]) + data[at + 1 :]
        with pytest.raises(model.Malformed):
            model.decode_batch(broken)


def test_a_cut_batch_is_left_out_and_a_wrong_count_is_malformed():
    one = model.encode_batch(model.make_batch([model.Record(0, 5, b"k", b"v")]))
    two = model.encode_batch(model.make_batch([model.Record(1, 5, b"k", b"v")]))
    for cut in range(len(two)):
        assert len(model.decode_batches(one + two[:cut])) == 1
    for count in (2, -1, 2**31 - 1):
        with pytest.raises(model.Malformed):
            model.decode_batch(model.reseal(one[:57] + struct.pack(">i", count) + one[61:]))
    twice = model.encode_batch(model.make_batch([model.Record(0, 5, b"k"), model.Record(1, 6)]))
    with pytest.raises(model.Malformed, match="after the last record"):
        model.decode_batch(model.reseal(twice[:57] + struct.pack(">i", 1) + twice[61:]))
