from kcore.log.log_offset_metadata import LogOffsetMetadata


def test_positions_compare_only_on_one_segment():
    a, b, c = LogOffsetMetadata(10, 0, 700), LogOffsetMetadata(4, 0, 200), LogOffsetMetadata(20, 15, 0)
    assert a.on_same_segment(b) and not a.on_same_segment(c)
    assert a.on_older_segment(c) and not c.on_older_segment(a)
    assert LogOffsetMetadata(5).message_offset_only
    assert not LogOffsetMetadata(5).on_same_segment(LogOffsetMetadata(6))
