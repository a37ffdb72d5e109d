import base64
import gc
import hashlib
import json
import pathlib
import random
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcore.common.topic_partition import TopicPartition
from kcore.coordinator.group import group_records
from kcore.coordinator.group.committed_offset import CommittedOffset, OffsetAndMetadata
from kcore.coordinator.group.group_records import GroupMetadataKey, GroupMetadataValue, MemberValue, OffsetCommitKey
from kcore.errors import CorruptMessage
from kcore.record.memory_records import MemoryRecords

GOLDEN = pathlib.Path(__file__).resolve().parents[3] / "golden" / "consumer-offsets"
EXPECTED = json.loads((GOLDEN / "expected.json").read_text())


def golden_records():
    """(record, what Kafka's own tool prints of it) for every data record of the golden logs."""
    for partition, expected in EXPECTED["partitions"].items():
        data = (GOLDEN / f"{partition}.log").read_bytes()
        assert hashlib.sha256(data).hexdigest() == EXPECTED["sha256"][f"{partition}.log"]
        batches = [batch for batch in MemoryRecords(data).batches if not batch.is_control]
        yield from zip((record for batch in batches for record in batch), expected, strict=True)


def test_keys_of_a_real_broker_are_read_and_written_back_byte_for_byte():
    read = 0
    for record, expected in golden_records():
        assert record.offset == expected["offset"]
        key = group_records.read_key(record.key)
        about = expected["key"]["data"]
        if expected["key"]["type"] == "1":
            assert key == OffsetCommitKey(about["group"], TopicPartition(about["topic"], about["partition"]))
            assert group_records.offset_commit_key(*key) == record.key
        elif expected["key"]["type"] == "2":
            assert key == GroupMetadataKey(about["group"])
            assert group_records.group_metadata_key(*key) == record.key
        else:
            assert key is None  # of the newer protocol
        read += key is not None
    assert read == 18


def test_offset_commits_of_a_real_broker_are_read_with_their_tagged_fields_skipped():
    versions = set()
    for record, expected in golden_records():
        if expected["key"]["type"] != "1" or record.value is None:
            continue
        versions.add((expected["payload"]["version"], "topicId" in expected["payload"]["data"]))
        about = expected["payload"]["data"]
        assert group_records.read_offset_commit_value(record.value) == OffsetAndMetadata(
            about["offset"], about["metadata"], about["leaderEpoch"], about["commitTimestamp"]
        )
    assert versions == {("4", True), ("4", False)}


def test_group_metadata_of_a_real_broker_are_read_and_written_back_byte_for_byte():
    seen = 0
    for record, expected in golden_records():
        if expected["key"]["type"] != "2" or record.value is None:
            continue
        assert expected["payload"]["version"] == "3"
        about = expected["payload"]["data"]
        value = group_records.read_group_metadata_value(record.value)
        assert value[:5] == (
            about["protocolType"],
            about["generation"],
            about["protocol"],
            about["leader"],
            about["currentStateTimestamp"],
        )
        for member, decoded in zip(value.members, about["members"], strict=True):
            assert member[:6] == (
                decoded["memberId"],
                decoded["groupInstanceId"],
                decoded["clientId"],
                decoded["clientHost"],
                decoded["rebalanceTimeout"],
                decoded["sessionTimeout"],
            )
            assert b"orders" in member.subscription and b"orders" in member.assignment
        assert group_records.group_metadata_value(value) == record.value
        seen += 1
    assert seen == 5


OFFSET, METADATA, COMMIT = 0x0102030405060708, "né", 0x1112131415161718
VALUE = OffsetAndMetadata(OFFSET, METADATA, 5, COMMIT)
WITHOUT_EPOCH = OffsetAndMetadata(OFFSET, METADATA, -1, COMMIT)
EXPIRING = OffsetAndMetadata(OFFSET, METADATA, -1, COMMIT, 77)


@pytest.mark.parametrize(
    "version, tail, expected",
    [
        (0, "{metadata}{commit}", WITHOUT_EPOCH),
        (1, "{metadata}{commit}{expire}", EXPIRING),
        (2, "{metadata}{commit}", WITHOUT_EPOCH),
        (3, "{epoch}{metadata}{commit}", VALUE),
        (4, "{epoch}{compact}{commit}{tags}", VALUE),
    ],
)
def test_offset_commits_of_every_version_are_read(version, tail, expected):
    fields = {
        "epoch": "00000005",
        "metadata": "0003" + "né".encode().hex(),
        "compact": "04" + "né".encode().hex(),
        "commit": "1112131415161718",
        "expire": "000000000000004d",
        "tags": "01" + "00" + "02" + "abcd",
    }
    data = bytes.fromhex(f"{version:04x}0102030405060708" + tail.format(**fields))
    assert group_records.read_offset_commit_value(data) == expected


def test_offset_commits_are_written_as_version_3_and_with_an_expiry_as_version_1():
    data = group_records.offset_commit_value(VALUE)
    assert data.hex() == "0003" + "0102030405060708" + "00000005" + "00036ec3a9" + "1112131415161718"
    data = group_records.offset_commit_value(EXPIRING)
    assert data[:2] == b"\x00\x01"
    assert group_records.read_offset_commit_value(data) == EXPIRING


def outcome(read, data):
    try:
        return read(data)
    except CorruptMessage as error:
        return str(error)


@given(
    st.one_of(
        st.binary(max_size=40),
        st.builds(
            lambda head, size, rest: b"\0\3" + head + size.to_bytes(2, "big") + rest,
            st.binary(min_size=12, max_size=12),
            st.one_of(st.integers(0, 12), st.integers(0, 0xFFFF)),
            st.one_of(st.binary(max_size=20), st.text(max_size=6).map(lambda text: text.encode() + bytes(8))),
        ),
    )
)
def test_whatever_the_bytes_are_the_usual_version_is_read_as_any_other(data):
    """Shortened, lengthened, and not UTF-8 too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(group_records, "read_version_3", lambda data: None)
        expected = outcome(group_records.read_offset_commit_value, data)
    assert outcome(group_records.read_offset_commit_value, data) == expected


def test_committed_offsets_are_values():
    assert OffsetAndMetadata(1, "m") == OffsetAndMetadata(1, "m", -1, -1, None) != OffsetAndMetadata(1, "n")
    assert OffsetAndMetadata(1) != (1, "", -1, -1, None)
    one, same, later = CommittedOffset(7, VALUE), CommittedOffset(7, VALUE), CommittedOffset(8, VALUE)
    assert one == same != later
    assert len({one, same, later}) == 2
    assert repr(CommittedOffset(7, EXPIRING)) == (
        "CommittedOffset(append_offset=7, value=OffsetAndMetadata(offset=72623859790382856, metadata='né', "
        "leader_epoch=-1, commit_timestamp=1230066625199609624, expire_timestamp=77))"
    )
    assert not gc.is_tracked(one) and not gc.is_tracked(VALUE)
    for wrong in ((1, None), (2**63,), (1, "", 2**31), (1, "", -1, -1, "never")):
        with pytest.raises((TypeError, OverflowError)):
            OffsetAndMetadata(*wrong)


@pytest.mark.parametrize("version", range(5))
def test_group_metadata_of_every_version_are_read(version):
    def string(text):
        if text is None:
            return b"\x00" if version == 4 else b"\xff\xff"
        data = text.encode()
        return (bytes([len(data) + 1]) if version == 4 else struct.pack(">h", len(data))) + data

    def blob(data):
        return (bytes([len(data) + 1]) if version == 4 else struct.pack(">i", len(data))) + data

    tags = b"\x00" if version == 4 else b""
    data = struct.pack(">h", version) + string("consumer") + struct.pack(">i", 9) + string("range") + string(None)
    if version >= 2:
        data += struct.pack(">q", 1234)
    data += b"\x02" if version == 4 else struct.pack(">i", 1)
    data += string("member") + (string("instance") if version >= 3 else b"") + string("client") + string("/host")
    data += struct.pack(">i", 60_000) if version >= 1 else b""
    data += struct.pack(">i", 10_000) + blob(b"sub") + blob(b"assigned") + tags + tags
    assert group_records.read_group_metadata_value(data) == GroupMetadataValue(
        "consumer",
        9,
        "range",
        None,
        1234 if version >= 2 else -1,
        [
            MemberValue(
                "member",
                "instance" if version >= 3 else None,
                "client",
                "/host",
                60_000 if version >= 1 else 10_000,
                10_000,
                b"sub",
                b"assigned",
            )
        ],
    )


READERS = {
    "key": group_records.read_key,
    "offset": group_records.read_offset_commit_value,
    "group": group_records.read_group_metadata_value,
}


def samples():
    for record, expected in golden_records():
        yield READERS["key"], record.key
        if record.value is not None and expected["key"]["type"] in "12":
            yield READERS["offset" if expected["key"]["type"] == "1" else "group"], record.value


def test_a_record_cut_short_anywhere_is_corrupt():
    for reader, data in samples():
        if reader is READERS["key"] and data[1] > 2:
            continue
        for length in range(len(data)):
            with pytest.raises(CorruptMessage):
                reader(data[:length])


@pytest.mark.parametrize("seed", range(5))
def test_damaged_records_are_read_or_corrupt_and_nothing_else(seed):
    rng = random.Random(seed)
    for reader, data in samples():
        for _ in range(200):
            damaged = bytearray(data)
            for _ in range(rng.randint(1, 3)):
                damaged[rng.randrange(len(damaged))] = rng.choice([0, 0x7F, 0x80, 0xFF, rng.randrange(256)])
            try:
                reader(bytes(damaged))
            except CorruptMessage:
                pass
            except Exception as error:
                raise AssertionError(f"seed={seed} {base64.b64encode(damaged)}") from error


@pytest.mark.parametrize("reader, what", [(READERS["offset"], "offset commit"), (READERS["group"], "group metadata")])
@pytest.mark.parametrize("version", [-1, 5])
def test_values_of_an_unknown_version_are_refused(reader, what, version):
    with pytest.raises(CorruptMessage, match=f"{what}: unknown version {version}"):
        reader(struct.pack(">h", version) + bytes(100))
