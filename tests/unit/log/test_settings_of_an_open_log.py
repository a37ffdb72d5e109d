"""A topic's settings change while its log is open: the next operation follows each of them."""

import random
import types
from dataclasses import fields, replace

import pytest

from kcore.common import file
from kcore.errors import InvalidRecord, InvalidTimestamp, MessageTooLarge, RecordListTooLarge
from kcore.log.log_config import LogConfig
from kcore.record.record_batch_builder import RecordBatchBuilder
from tests.unit.log.logs import SIZE, Logs, batch, file_names

NOW = 1_700_000_000_000

#: Which code follows which setting: a new setting must be added to one of these lists.
FOLLOWED_BY_THE_LOG = {
    "cleanup_policy",
    "compression_gzip_level",
    "compression_lz4_level",
    "compression_type",
    "compression_zstd_level",
    "file_delete_delay_ms",
    "flush_messages",
    "index_interval_bytes",
    "max_message_bytes",
    "message_timestamp_after_max_ms",
    "message_timestamp_before_max_ms",
    "message_timestamp_type",
    "per_append_index",
    "retention_bytes",
    "retention_ms",
    "segment_bytes",
    "segment_index_bytes",
    "segment_jitter_ms",
    "segment_ms",
}
#: Read from log.config by those who use them: LogManager, the cleaner, Partition, the Fetch handler.
READ_ELSEWHERE = {
    "delete_retention_ms",
    "flush_ms",
    "max_compaction_lag_ms",
    "message_downconversion_enable",
    "min_cleanable_dirty_ratio",
    "min_compaction_lag_ms",
    "min_insync_replicas",
}
#: In DescribeConfigs, but without an effect yet.
NOT_USED = {
    "follower_replication_throttled_replicas",
    "leader_replication_throttled_replicas",
    "local_retention_bytes",
    "local_retention_ms",
    "message_format_version",
    "message_timestamp_difference_max_ms",
    "preallocate",
    "remote_log_copy_disable",
    "remote_log_delete_on_disable",
    "remote_storage_enable",
    "unclean_leader_election_enable",
}


def change(log, **settings):
    log.config = replace(log.config, **settings)


def bases(log):
    return [segment.base_offset for segment in log.segments]


def test_every_setting_has_a_place_in_this_test():
    tables = [FOLLOWED_BY_THE_LOG, READ_ELSEWHERE, NOT_USED, {"overridden"}]
    assert sorted(name for table in tables for name in table) == sorted(field.name for field in fields(LogConfig))


def test_a_log_and_its_files_have_one_config(log):
    change(log, segment_bytes=4711)
    assert log.local.config is log.config
    assert log.config.segment_bytes == 4711


@pytest.mark.parametrize("as_follower", [False, True])
def test_LOG_17_segment_bytes(log, as_follower):
    def append():
        if as_follower:
            log.append_as_follower(batch(base_offset=log.log_end_offset))
        else:
            log.append_as_leader(batch())

    append()
    append()
    change(log, segment_bytes=2 * SIZE)
    append()
    assert bases(log) == [0, 2]
    change(log, segment_bytes=100 * SIZE)
    for _ in range(5):
        append()
    assert bases(log) == [0, 2]


def test_LOG_10_segment_bytes_limits_an_append(log):
    change(log, segment_bytes=SIZE)
    with pytest.raises(RecordListTooLarge):
        log.append_as_leader(batch(2))


def test_a_segment_that_grows_beyond_the_size_it_was_opened_with_is_mapped_a_few_times_only(tmp_path):
    log = Logs(tmp_path / "orders-0", segment_bytes=4 * SIZE, index_interval_bytes=0).open()
    log.append_as_leader(batch())
    change(log, segment_bytes=1000 * SIZE)
    file.count_calls()
    try:
        for _ in range(500):
            offset = log.append_as_leader(batch()).first_offset
            log.read(offset, 1 << 20)
        assert file.calls("mmap") < 20
    finally:
        file.clear_faults()
    assert bases(log) == [0]


def test_LOG_18_segment_ms(log):
    log.append_as_leader(batch(timestamp=NOW))
    change(log, segment_ms=10)
    log.append_as_leader(batch(timestamp=NOW + 10))
    assert bases(log) == [0]
    log.append_as_leader(batch(timestamp=NOW + 11))
    assert bases(log) == [0, 2]


def test_LOG_18_segment_jitter_ms_from_the_next_roll_on(log, monkeypatch):
    change(log, segment_jitter_ms=400, segment_ms=1000)
    monkeypatch.setattr(log, "_random", types.SimpleNamespace(randrange=lambda stop: stop - 1))
    log.append_as_leader(batch(timestamp=NOW))
    log.append_as_leader(batch(timestamp=NOW + 1000))
    assert bases(log) == [0]
    log.roll()
    log.append_as_leader(batch(timestamp=NOW))
    log.append_as_leader(batch(timestamp=NOW + 602))
    assert bases(log) == [0, 2, 3]


def test_LOG_19_segment_index_bytes_at_the_next_roll(logs, log):
    log.append_as_leader(batch())
    change(log, segment_index_bytes=160, index_interval_bytes=0)
    assert log.active_segment.offset_index.max_entries > 20
    log.roll()
    sizes = {path.name: path.stat().st_size for path in logs.directory.iterdir()}
    assert (sizes[f"{1:020d}.index"], sizes[f"{1:020d}.timeindex"]) == (160, 156)
    for _ in range(30):
        log.append_as_leader(batch())
    # 20 entries of the offset index; the first batch of a segment has none.
    assert bases(log) == [0, 1, 22]


def test_LOG_19_segment_index_bytes_where_an_empty_segment_is_rolled(logs, log):
    change(log, segment_index_bytes=160, segment_bytes=10 * SIZE, index_interval_bytes=0, per_append_index=True)
    segment = log.active_segment
    assert log.roll() is segment
    assert (logs.directory / f"{0:020d}.index").stat().st_size == 160
    for n in range(4):
        log.append_as_follower(batch(base_offset=2 * n) + batch(base_offset=2 * n + 1))
    assert [segment.offset_index.entry(n)[0] for n in range(3)] == [3, 5, 7]  # one entry an append
    segment.truncate_to(0)
    assert (logs.directory / f"{0:020d}.index").stat().st_size == 160


def test_a_segment_with_data_keeps_what_its_entries_were_made_with(log):
    log.append_as_leader(batch())
    with pytest.raises(ValueError, match="were written with other settings"):
        log.active_segment.configure(**LogConfig().segment_options)


def test_index_interval_bytes_at_the_next_roll(log):
    change(log, index_interval_bytes=0)
    log.append_as_leader(batch())
    log.append_as_leader(batch())
    first = log.active_segment
    second = log.roll()
    log.append_as_leader(batch())
    log.append_as_leader(batch())
    assert (len(first.offset_index), len(second.offset_index)) == (0, 1)


def test_per_append_index_at_the_next_roll(log):
    change(log, index_interval_bytes=0, per_append_index=True)
    log.append_as_leader(batch())
    segment = log.roll()
    log.append_as_follower(batch(base_offset=1))
    log.append_as_follower(b"".join(batch(base_offset=offset) for offset in range(2, 6)))
    assert len(segment.offset_index) == 1


def test_file_delete_delay_ms(logs, log):
    for _ in range(3):
        log.append_as_leader(batch())
        log.roll()
    change(log, file_delete_delay_ms=500, retention_bytes=0)
    log.delete_old_segments()
    assert file_names(logs, ".deleted")
    logs.time.sleep(499)
    logs.scheduler.tick()
    assert file_names(logs, ".deleted")
    logs.time.sleep(1)
    logs.scheduler.tick()
    assert file_names(logs, ".deleted") == []


def test_retention_bytes_retention_ms_and_cleanup_policy(logs, log):
    for n in range(6):
        log.append_as_leader(batch(timestamp=logs.time.milliseconds() + n))
        log.roll()
    assert log.delete_old_segments() == 0
    change(log, retention_bytes=4 * SIZE)
    assert log.delete_old_segments() == 2
    change(log, retention_bytes=-1, retention_ms=100)
    logs.time.sleep(103)
    change(log, cleanup_policy=("compact",))
    assert log.delete_old_segments() == 0
    change(log, cleanup_policy=("delete",))
    assert log.delete_old_segments() == 1
    assert bases(log) == [3, 4, 5, 6]


def test_cleanup_policy_compact_requires_keys(log):
    log.append_as_leader(batch(key=None))
    change(log, cleanup_policy=("compact",))
    with pytest.raises(InvalidRecord):
        log.append_as_leader(batch(key=None))


def test_flush_messages(log):
    log.append_as_leader(batch())
    assert log.recovery_point == 0
    change(log, flush_messages=2)
    log.append_as_leader(batch())
    assert log.recovery_point == 2


def test_LOG_06_max_message_bytes(log):
    change(log, max_message_bytes=SIZE - 1)
    with pytest.raises(MessageTooLarge):
        log.append_as_leader(batch())
    change(log, max_message_bytes=SIZE)
    log.append_as_leader(batch())


def test_message_timestamp_type_and_limits(logs, log):
    now_ms = logs.time.milliseconds()
    change(log, message_timestamp_before_max_ms=10)
    with pytest.raises(InvalidTimestamp):
        log.append_as_leader(batch(timestamp=now_ms - 11))
    log.append_as_leader(batch(timestamp=now_ms + 100))
    change(log, message_timestamp_after_max_ms=10)
    with pytest.raises(InvalidTimestamp):
        log.append_as_leader(batch(timestamp=now_ms + 11))
    change(log, message_timestamp_type="LogAppendTime")
    assert log.append_as_leader(batch(timestamp=now_ms + 11)).log_append_time == now_ms
    change(log, message_timestamp_type="CreateTime")
    assert log.append_as_leader(batch(timestamp=now_ms)).log_append_time == -1


def test_compression_type_and_levels(log):
    rng = random.Random(1)
    vocabulary = [rng.randbytes(rng.randint(2, 9)) for _ in range(300)]
    words = RecordBatchBuilder()
    for _ in range(100):
        words.append(b" ".join(rng.choices(vocabulary, k=60)), timestamp=NOW)
    words = words.build()

    def stored(**settings):
        change(log, **settings)
        offset = log.append_as_leader(bytes(words)).first_offset
        (one,) = log.batches(offset)
        return one.compression, one.size

    assert stored()[0] == "none"
    for codec, level, low, high in (("gzip", "gzip", 1, 9), ("lz4", "lz4", 1, 17), ("zstd", "zstd", -100_000, 22)):
        weak = stored(compression_type=codec, **{f"compression_{level}_level": low})
        strong = stored(compression_type=codec, **{f"compression_{level}_level": high})
        assert weak[0] == strong[0] == codec
        assert weak[1] > strong[1]
    assert stored(compression_type="uncompressed")[0] == "none"


def test_another_thread_sees_the_old_settings_or_the_new_ones_whole(log):
    """Another thread may run whenever the change reads a property of the new settings that is Python code."""
    seen = []

    class Watched(LogConfig):
        @property
        def compact(self):
            seen.append((log.config.max_message_bytes, log.append_as_leader(batch(timestamp=5)).log_append_time))
            return False

    before = log.config.max_message_bytes
    log.config = Watched(max_message_bytes=1, segment_bytes=1, message_timestamp_type="LogAppendTime")
    assert seen == [(before, -1)]
    with pytest.raises(MessageTooLarge):
        log.append_as_leader(batch(timestamp=5))
