"""A level, an origin or a setting that there is not is refused at the call: none of them is taken for another."""

import dataclasses

import pytest

from kcore.errors import InvalidConfig
from kcore.log.log_config import LogConfig
from kcore.log.log_offset_metadata import AppendOrigin, FetchIsolation
from kcore.log.open_log import open_log
from kcore.record.record_batch_builder import RecordBatchBuilder
from tests.golden_data import partition_dir
from tests.unit.log.logs import batch

LEVELS = ["read_comitted", "READ_COMMITTED", "committed", "", None, FetchIsolation.TXN_COMMITTED]
BOTH = "'read_uncommitted' or 'read_committed'"


@pytest.fixture
def log():
    """Kafka's, with aborted transactions."""
    with open_log(partition_dir("g-txn-0")) as log:
        assert len(list(log.records(isolation="read_committed"))) < len(list(log.records()))
        yield log


@pytest.mark.parametrize("level", LEVELS)
def test_a_misspelt_isolation_level_is_refused_at_the_call_and_not_at_the_first_record(log, level):
    for method in (log.records, log.batches):
        with pytest.raises(ValueError, match=BOTH) as raised:
            method(isolation=level)
        assert repr(level) in str(raised.value)


@pytest.mark.parametrize("level", LEVELS)
def test_a_misspelt_isolation_level_gives_no_arrow_table(log, level):
    pytest.importorskip("pyarrow")
    for method in (log.to_arrow, log.iter_arrow):
        with pytest.raises(ValueError, match=BOTH):
            method(isolation=level)


@pytest.mark.parametrize("level", ["read_committed", "TXN_COMMITTED", None, 2, AppendOrigin.CLIENT])
def test_a_read_takes_a_fetch_isolation_and_nothing_like_it(log, level):
    with pytest.raises(TypeError, match="FetchIsolation"):
        log.read(0, 1 << 20, level)


@pytest.mark.parametrize("origin", ["client", "CLIENT", None, 1, FetchIsolation.LOG_END])
def test_an_append_takes_an_append_origin_and_nothing_like_it(tmp_path, origin):
    with open_log(tmp_path / "t-0", "a") as log:
        with pytest.raises(TypeError, match="AppendOrigin"):
            log.append_as_leader(batch(), origin=origin)
        assert log.log_end_offset == 0


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("compression_type", "lz5"),
        ("compression_type", "none"),
        ("compression_type", "ZSTD"),
        ("message_timestamp_type", "logappendtime"),
        ("message_timestamp_type", "LogAppend"),
        ("cleanup_policy", ("compacted",)),
        ("cleanup_policy", ("delete", "Compact")),
        ("cleanup_policy", "compact"),
    ],
)
def test_a_log_config_takes_no_value_that_its_setting_does_not_have(setting, value):
    with pytest.raises(InvalidConfig, match=setting.replace("_", r"\.")):
        LogConfig(**{setting: value})
    with pytest.raises(InvalidConfig, match=setting.replace("_", r"\.")):
        dataclasses.replace(LogConfig(), **{setting: value})


@pytest.mark.parametrize("value", ["none ", "LZ4", "lz5", "", None])
def test_a_misspelt_codec_builds_no_batch(value):
    with pytest.raises(ValueError, match="is none of none, gzip, snappy, lz4, zstd"):
        RecordBatchBuilder(compression=value)


@pytest.mark.parametrize("mode", ["w", "A", "rb", "", None])
def test_a_mode_that_there_is_not_opens_nothing(tmp_path, mode):
    with pytest.raises(ValueError, match="'r' or 'a'"):
        open_log(tmp_path / "t-0", mode)
    assert not (tmp_path / "t-0").exists()
