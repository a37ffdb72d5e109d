import pytest

from kcore.errors import (
    OffsetOutOfRange,
)
from tests.unit.log.logs import batch, offsets


def test_records_can_be_limited_at_both_ends_and_wrong_starts_are_refused(log):
    log.append_as_leader(batch(5))
    log.append_as_leader(batch(5))
    assert offsets(log, start_offset=3, end_offset=7) == [3, 4, 5, 6]
    assert offsets(log, end_offset=0) == []
    assert offsets(log, start_offset=10) == []
    with pytest.raises(OffsetOutOfRange):
        offsets(log, start_offset=11)
