import os

import pytest

from kcore.common.topic_partition import TopicPartition
from kcore.errors import CorruptFile
from kcore.log.checkpoints import EpochEntry, LeaderEpochCheckpointFile, OffsetCheckpointFile
from tests.reference.disk import calls, recorded


def test_an_offset_checkpoint_has_kafkas_text_and_is_read_back(tmp_path):
    path = str(tmp_path / "recovery-point-offset-checkpoint")
    checkpoint = OffsetCheckpointFile(path)
    assert checkpoint.read() == {}
    offsets = {TopicPartition("a", 0): 5, TopicPartition("b-c", 12): 2**40}
    checkpoint.write(offsets)
    assert (tmp_path / "recovery-point-offset-checkpoint").read_text() == f"0\n2\na 0 5\nb-c 12 {2**40}\n"
    assert checkpoint.read() == offsets
    assert os.listdir(tmp_path) == ["recovery-point-offset-checkpoint"]


def test_RM_25_a_checkpoint_is_on_disk_when_the_write_returns_and_until_then_the_old_one_is_there(tmp_path):
    checkpoint = OffsetCheckpointFile(str(tmp_path / "x"))
    epochs = LeaderEpochCheckpointFile(str(tmp_path / "y"))
    checkpoint.write({TopicPartition("a", 0): 5})
    with recorded() as record:
        checkpoint.write({TopicPartition("a", 0): 6})
        assert calls(record, tmp_path) == [
            "created x.tmp", "pwrite x.tmp", "fsync x.tmp", "rename x.tmp x", "fsync ."
        ]  # fmt: skip
    with recorded() as record:
        epochs.write([EpochEntry(1, 0)])
        assert calls(record, tmp_path)[1:] == ["pwrite y.tmp", "fsync y.tmp", "rename y.tmp y", "fsync ."]
    with recorded() as record:
        epochs.write([EpochEntry(1, 0), EpochEntry(2, 5)], sync=False)  # flush() syncs it later
        assert calls(record, tmp_path) == ["created y.tmp", "pwrite y.tmp", "rename y.tmp y"]


def test_EPOCH_01_a_leader_epoch_checkpoint_has_kafkas_text_and_is_read_back(tmp_path):
    checkpoint = LeaderEpochCheckpointFile(str(tmp_path / "leader-epoch-checkpoint"))
    checkpoint.write([EpochEntry(1, 0), EpochEntry(2, 378)])
    assert (tmp_path / "leader-epoch-checkpoint").read_text() == "0\n2\n1 0\n2 378\n"
    assert checkpoint.read() == [(1, 0), (2, 378)]


def test_an_empty_file_holds_nothing(tmp_path):
    (tmp_path / "x").touch()
    assert OffsetCheckpointFile(str(tmp_path / "x")).read() == {}


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("1\n0\n", 1),
        ("zero\n0\n", 1),
        ("0\n", 2),
        ("0\n-\n", 2),
        ("0\n2\na 0 1\n", 2),
        ("0\n1\na 0 1\nb 0 1\n", 2),
        ("0\n1\na 0\n", 3),
        ("0\n1\na 0 1 2\n", 3),
        ("0\n2\na 0 1\nb 0 x\n", 4),
        ("0\n1\na 0 1_0\n", 3),
        ("0\n1\na 0 5", 3),
        ("0\n1\na 0 -5\n", 3),
        ("0\n1\na -1 5\n", 3),
    ],
)
def test_a_damaged_checkpoint_is_refused_naming_file_and_line(tmp_path, text, line):
    path = tmp_path / "replication-offset-checkpoint"
    path.write_text(text)
    with pytest.raises(CorruptFile, match=f"{path}: line {line}:"):
        OffsetCheckpointFile(str(path)).read()


def test_bytes_that_are_no_text_are_refused(tmp_path):
    (tmp_path / "x").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(CorruptFile, match="not a text file"):
        OffsetCheckpointFile(str(tmp_path / "x")).read()
