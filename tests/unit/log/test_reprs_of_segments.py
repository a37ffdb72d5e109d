"""What a notebook or a debugger shows of a log's segments."""

import kcore
from kcore.log.log_config import LogConfig
from kcore.record.record_batch_builder import RecordBatchBuilder


def fill(directory, batches: int, config: LogConfig) -> None:
    with kcore.open_log(directory, "a", config=config) as log:
        for _ in range(batches):
            builder = RecordBatchBuilder()
            builder.append(b"v", b"k", timestamp=1_700_000_000_000)
            log.append_as_leader(builder.build())


def test_the_segments_of_a_log_show_their_offsets_and_bytes(tmp_path):
    fill(tmp_path / "t-0", 5, LogConfig(segment_bytes=150, index_interval_bytes=10))
    with kcore.open_log(tmp_path / "t-0") as log:
        size = log.segments[0].size
        assert [segment.base_offset for segment in log.segments] == [0, 2, 4]
        assert repr(log.segments) == (
            f"LogSegments([0, 2) {size} bytes, [2, 4) {size} bytes, [4, 5) {log.segments[2].size} bytes)"
        )


def test_of_many_segments_the_first_and_the_last_are_shown(tmp_path):
    fill(tmp_path / "t-0", 30, LogConfig(segment_bytes=80, index_interval_bytes=10))
    with kcore.open_log(tmp_path / "t-0") as log:
        assert len(log.segments) == 30
        text = repr(log.segments)
        assert text.startswith("LogSegments([0, 1) ") and text.endswith(f"[29, 30) {log.segments[-1].size} bytes)")
        assert "... 25 more" in text and len(text) < 200


def test_segments_whose_end_cannot_be_read_still_have_a_repr(tmp_path):
    fill(tmp_path / "t-0", 1, LogConfig())
    with kcore.open_log(tmp_path / "t-0") as log:
        segments = log.segments
        path = tmp_path / "t-0" / "00000000000000000000.log"
        with path.open("r+b") as file:  # of the same size: the segment may be mapped
            file.write(b"\x00" * 8 + b"\xff" * 9)
        assert repr(segments).startswith("LogSegments([0, ")
    assert repr(type(segments)()) == "LogSegments(none)"
