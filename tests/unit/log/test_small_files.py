import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from kcore.errors import CorruptFile, DirectoryInUse
from kcore.log import clean_shutdown
from kcore.log.directory_lock import DirectoryLock
from kcore.log.partition_metadata import format_topic_id, parse_topic_id, read_topic_id, write_topic_id
from tests.golden_data import data_dir, partition_dir

KAFKAS_ID = "JCJw_LQ9TLarK9Q8M3kEtA"  # of g-none-0


def test_partition_metadata_is_kafkas_byte_for_byte(tmp_path):
    topic_id = read_topic_id(str(partition_dir("g-none-0")))
    assert format_topic_id(topic_id) == KAFKAS_ID and parse_topic_id(KAFKAS_ID) == topic_id
    write_topic_id(str(tmp_path), topic_id)
    assert (tmp_path / "partition.metadata").read_bytes() == (
        partition_dir("g-none-0") / "partition.metadata"
    ).read_bytes()


def test_no_partition_metadata_is_no_topic_id(tmp_path):
    assert read_topic_id(str(tmp_path)) is None


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("version 0\n", 1),
        ("version: 1\ntopic_id: " + KAFKAS_ID, 1),
        ("version: 0\n", 2),
        ("version: 0\nid: x", 2),
        ("version: 0\ntopic_id: short", 2),
        ("version: 0\ntopic_id: " + "!" * 22, 2),
        ("version: 0\ntopic_id: \u00e9" + KAFKAS_ID[1:], 2),
    ],
)
def test_damaged_partition_metadata_is_refused_naming_the_line(tmp_path, text, line):
    (tmp_path / "partition.metadata").write_text(text)
    with pytest.raises(CorruptFile, match=f"partition.metadata: line {line}"):
        read_topic_id(str(tmp_path))


def test_the_clean_shutdown_marker_is_kafkas_byte_for_byte(tmp_path):
    golden = data_dir() / ".kafka_cleanshutdown"
    clean_shutdown.write_clean_shutdown(str(tmp_path), json.loads(golden.read_bytes())["brokerEpoch"])
    assert (tmp_path / ".kafka_cleanshutdown").read_bytes() == golden.read_bytes()
    assert clean_shutdown.was_clean_shutdown(str(tmp_path))
    assert clean_shutdown.remove_clean_shutdown(str(tmp_path))
    assert not clean_shutdown.remove_clean_shutdown(str(tmp_path))


@pytest.mark.parametrize("text", ["", "{", "[]", '{"brokerEpoch": "x"}', '{"brokerEpoch": true}'])
def test_an_empty_or_odd_marker_is_clean(tmp_path, text):
    (tmp_path / ".kafka_cleanshutdown").write_text(text)
    assert clean_shutdown.was_clean_shutdown(str(tmp_path))


def test_a_marker_that_is_a_link_to_nowhere_is_none_and_goes(tmp_path):
    (tmp_path / ".kafka_cleanshutdown").symlink_to("not/mounted")
    assert not clean_shutdown.was_clean_shutdown(str(tmp_path))
    assert not clean_shutdown.remove_clean_shutdown(str(tmp_path))
    assert os.listdir(tmp_path) == []


def test_a_directory_is_locked_against_this_process_and_others(tmp_path):
    lock = DirectoryLock(str(tmp_path))
    name = Path("/proc/self/comm").read_text().strip()
    with pytest.raises(DirectoryInUse, match="this process"):
        DirectoryLock(str(tmp_path / "."))
    other = "import sys; from kcore.log.directory_lock import DirectoryLock; DirectoryLock(sys.argv[1])"
    ran = subprocess.run([sys.executable, "-c", other, str(tmp_path)], capture_output=True, text=True, check=False)
    assert ran.returncode == 1 and f"another process holds its .lock: process {os.getpid()} ({name})" in ran.stderr
    lock.release()
    lock.release()
    DirectoryLock(str(tmp_path)).release()
    assert (tmp_path / ".lock").exists()
