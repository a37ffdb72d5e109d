"""What a reader gets of a log that was not stopped cleanly and has a hole that recovery would cut off."""

import pytest

from kcore.errors import CorruptMessage
from kcore.log.log_config import LogConfig
from kcore.log.open_log import open_log
from tests.unit.log.logs import batch, offsets


@pytest.fixture
def killed(tmp_path):
    """A log of 60 batches in two segments; the disk lost a page of the first one, which was not flushed."""
    path = tmp_path / "orders-0"
    with open_log(str(path), "a", config=LogConfig(segment_bytes=3000, index_interval_bytes=500)) as log:
        for n in range(60):
            log.append_as_leader(batch(1, timestamp=1000 + n), 0)
        place = log.segments[0].translate_offset(20)
        assert len(log.segments) == 2
    with open(path / f"{0:020d}.log", "r+b") as file:
        file.seek(place.position)
        file.write(bytes(place.size * 3))
    (tmp_path / ".kafka_cleanshutdown").unlink()
    (tmp_path / "recovery-point-offset-checkpoint").unlink()
    return path


def test_the_error_at_a_hole_comes_after_the_records_before_it_and_says_what_recovery_would_keep(killed):
    read = []
    with open_log(str(killed)) as log, pytest.raises(CorruptMessage) as raised:
        for record in log.records():
            read.append(record.offset)
    assert read == list(range(20))
    assert "open_log(path, 'a') would recover the log: cut it here, so that it ends at offset 20" in str(raised.value)
    assert "`kcore.open_log(DIR).records(on_error='stop')` ends here" in str(raised.value)
    assert raised.value.source == str(killed / f"{0:020d}.log")


def test_a_reader_that_stops_at_damage_reads_what_recovery_keeps(killed, caplog):
    with open_log(str(killed)) as log:
        read = [record.offset for record in log.records(on_error="stop")]
        assert [b.base_offset for b in log.batches(on_error="stop")] == read
        assert [record.offset for record in log.records(25)] == list(range(25, 60)), "a start after the damage"
    assert "the iteration ends before offset 20" in caplog.text
    with open_log(str(killed), "a") as log:
        assert offsets(log) == read == list(range(20))


def test_where_recovery_would_not_look_the_error_names_the_repair(killed):
    (killed.parent / ".kafka_cleanshutdown").write_text("0\n")
    with open_log(str(killed)) as log, pytest.raises(CorruptMessage, match="`kcore repair` shows what it would keep"):
        list(log.records())


@pytest.mark.parametrize("batch_bytes", [1, 1000, 1 << 24])
def test_readers_of_arrow_stop_at_damage_where_readers_of_records_do(killed, batch_bytes, caplog):
    with open_log(str(killed)) as log:
        assert log.to_arrow(columns=["offset"], on_error="stop")["offset"].to_pylist() == list(range(20))
        assert "the iteration ends before offset 20" in caplog.text
        part = log.to_arrow(5, 30, ["offset"], on_error="stop")
        assert part["offset"].to_pylist() == list(range(5, 20))
        read = []
        with pytest.raises(
            CorruptMessage, match=r"records\(on_error='stop'\)` ends here.* it ends at offset 20"
        ) as raised:
            for arrow in log.iter_arrow(columns=["offset"], batch_bytes=batch_bytes):
                read += arrow["offset"].to_pylist()
        assert read == list(range(20)) and raised.value.source == str(killed / f"{0:020d}.log")
        stopped = log.iter_arrow(columns=["offset"], batch_bytes=batch_bytes, on_error="stop")
        assert [offset for arrow in stopped for offset in arrow["offset"].to_pylist()] == read
        after = log.to_arrow(25, columns=["offset"], on_error="stop")
        assert after["offset"].to_pylist() == list(range(25, 60)), "a start after the damage"


@pytest.mark.parametrize("at", [3, 7, 9, 11, 16, 17, 23, 40, 60, -1])
@pytest.mark.parametrize("bit", [0x01, 0x40])
def test_readers_of_arrow_and_of_records_stop_at_the_same_offset_whatever_byte_is_damaged(tmp_path, at, bit):
    with open_log(str(tmp_path / "orders-0"), "a", config=LogConfig(index_interval_bytes=500)) as log:
        for n in range(20):
            log.append_as_leader(batch(3, timestamp=1000 + n), 0)
        place = log.segments[0].translate_offset(30)
        with open(log.segments[0].log_path, "r+b") as file:
            data = bytearray(file.read())
            data[place.position + at % place.size] ^= bit
            file.seek(0)
            file.write(data)
        expected = [record.offset for record in log.records(on_error="stop")]
        assert log.to_arrow(columns=["offset"], on_error="stop")["offset"].to_pylist() == expected


def test_on_error_is_checked_at_the_call(killed):
    with open_log(str(killed)) as log:
        for read in (log.records, log.batches, log.to_arrow, log.iter_arrow):
            with pytest.raises(ValueError, match="on_error 'skip', expected 'raise' or 'stop'"):
                read(on_error="skip")


@pytest.mark.parametrize("bit", [0x01, 0x10, 0x40])
def test_LOG_24_a_read_does_not_go_on_in_the_next_segment_where_a_wrong_length_hides_records(tmp_path, bit):
    """The batch seems to go on after the end of its file.  A follower that got the next segment would copy a hole."""
    config = LogConfig(segment_bytes=3000, index_interval_bytes=500)
    with open_log(str(tmp_path / "orders-0"), "a", config=config) as log:
        for n in range(60):
            log.append_as_leader(batch(1, timestamp=1000 + n), 0)
        first = log.segments[0]
        place, last_offset = first.translate_offset(20), log.segments[1].base_offset - 1
        with open(first.log_path, "r+b") as file:
            file.seek(place.position + 9)
            byte = file.read(1)[0]
            file.seek(place.position + 9)
            file.write(bytes([byte ^ bit]))
        with pytest.raises(CorruptMessage, match=f"ends inside the batch at position {place.position}") as raised:
            log.read(20, 1 << 20)
        assert (raised.value.source, raised.value.position) == (first.log_path, place.position)
        # The index leads around it, and the end of a sound segment is no damage.
        assert log.read(last_offset, 1 << 20).records.size_in_bytes > 0
        assert log.read(last_offset + 1, 1 << 20).fetch_offset_metadata.segment_base_offset == last_offset + 1
