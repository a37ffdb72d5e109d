"""What clients saw of a simulated cluster, and what must therefore hold."""

from __future__ import annotations

from collections import defaultdict

from kcore.common.topic_partition import TopicPartition
from kcore.log.unified_log import UnifiedLog


class History:
    """Offset -> value of every record that was acknowledged, or seen below a high watermark, of each partition.

    Leaders are members of the ISR here, so whatever was committed once stays, or is below the log start.
    """

    def __init__(self) -> None:
        self.committed: dict[TopicPartition, dict[int, bytes]] = defaultdict(dict)
        self.acknowledged = 0

    def acknowledge(self, tp: TopicPartition, offset: int, values: list[bytes]) -> None:
        self.acknowledged += 1
        for at, value in enumerate(values):
            self._commit(tp, offset + at, value, "acknowledged")

    def check_below_high_watermark(self, log: UnifiedLog, who: str) -> None:
        """Replicas are equal below the high watermark, and a consumer never reads two values at one offset."""
        high_watermark = log.high_watermark
        assert log.log_start_offset <= high_watermark <= log.log_end_offset, f"{who}: {log}"
        for record in log.records(end_offset=high_watermark):
            assert record.value is not None
            self._commit(log.topic_partition, record.offset, bytes(record.value), f"below the high watermark of {who}")

    def check_nothing_is_lost(self, log: UnifiedLog, who: str) -> None:
        """A leader has every committed record that its log has not deleted."""
        values = {record.offset: record.value for record in log.records()}
        for offset, value in self.committed[log.topic_partition].items():
            if offset >= log.log_start_offset:
                has = values.get(offset)
                assert has == value, f"{who}: {log} has {has!r} at {offset}, where {value!r} was committed"

    def _commit(self, tp: TopicPartition, offset: int, value: bytes, how: str) -> None:
        known = self.committed[tp].setdefault(offset, value)
        assert known == value, f"{tp} {offset}: {value!r} {how}, but {known!r} was committed there"
