from kcore.log.log_offset_metadata import LogOffsetMetadata


def test_an_offset_without_its_segment_or_its_position_there_is_an_offset_only():
    assert not LogOffsetMetadata(10, 0, 700).message_offset_only
    assert LogOffsetMetadata(5).message_offset_only and LogOffsetMetadata(5, 0).message_offset_only
