import pytest

from kcore.common.topic_partition import TopicPartition
from kcore.spark.options import (
    BATCH_OPTIONS,
    COLUMNS,
    EARLIEST,
    LATEST,
    STREAM_OPTIONS,
    OptionError,
    check_names,
    default_columns,
    read_options,
)


def read(streaming=False, **options):
    return read_options({"path": "/data", **options}, streaming=streaming)


def test_without_more_than_a_path_a_batch_reads_all_and_a_stream_what_comes():
    batch, stream = read(), read(streaming=True)
    assert (batch.starting.offset, batch.ending.offset) == (EARLIEST, LATEST)
    assert stream.starting.offset == LATEST
    assert batch.fail_on_data_loss and not batch.include_headers
    assert batch.columns == COLUMNS[:-1]
    assert batch.isolation == "read_uncommitted"
    assert stream.max_trigger_delay_ms == 15 * 60_000


def test_names_are_accepted_in_any_case_of_letters():
    options = {name.lower() if i % 2 else name.upper(): "x" for i, name in enumerate(BATCH_OPTIONS)}
    check_names(options, BATCH_OPTIONS)


@pytest.mark.parametrize("name", sorted(set(BATCH_OPTIONS + STREAM_OPTIONS) - {"path", "kafka.isolation.level"}))
def test_a_misspelt_option_names_the_nearest_right_one(name):
    streaming = name not in BATCH_OPTIONS
    with pytest.raises(OptionError, match=rf"did you mean .*\b{name}\?"):
        read(streaming, **{name[:-1].lower() + "x": "1"})


@pytest.mark.parametrize(
    ("option", "shown"),
    [
        ("startingoffset", "unknown option startingOffset; did you mean startingOffsets?"),
        ("mxrecordsperpartition", "unknown option mxRecordsPerPartition; did you mean maxRecordsPerPartition?"),
        ("failondatalosss", "unknown option failOnDataLosss; did you mean failOnDataLoss?"),
        ("STARTINGOFFSET", "unknown option STARTINGOFFSET; did you mean startingOffsets?"),
        ("groupidprefix", "option groupIdPrefix is not kcore's: "),
        ("kafkaconsumer.polltimeoutms", "option kafkaConsumer.pollTimeoutMs is not kcore's: "),
        ("maxoffsetspertrigger", "option maxOffsetsPerTrigger is not for this: "),
    ],
)
def test_names_that_spark_has_put_into_lower_case_are_shown_as_they_are_written(option, shown):
    with pytest.raises(OptionError) as error:
        read(**{option: "1"})
    assert str(error.value).startswith(shown)


@pytest.mark.parametrize(
    ("name", "instead"),
    [
        ("kafka.bootstrap.servers", "kcore.bootstrap.servers"),
        ("kafka.group.id", "without a consumer group"),
        ("groupIdPrefix", "without a consumer group"),
        ("kafka.isolation.levle", "did you mean kafka.isolation.level"),
        ("kafka.security.protocol", r"kcore\.client\.\*"),
        ("kafka.max.poll.records", "without a consumer"),
        ("kafkaConsumer.pollTimeoutMs", "nothing is polled"),
        ("maxOffsetsPerTrigger", "it is for streams"),
        ("zzzzzzzz", "valid options are path, subscribe"),
    ],
)
def test_an_option_without_a_meaning_here_is_an_error_that_names_the_right_one(name, instead):
    with pytest.raises(OptionError, match=instead):
        read(**{name: "1"})


def test_a_stream_has_no_ending_offsets():
    with pytest.raises(OptionError, match="a stream has no end"):
        read(streaming=True, endingOffsets="latest")


def test_topics_are_selected_in_one_of_three_ways():
    assert read(subscribe=" a, b ").topics == ("a", "b")
    assert read(subscribePattern="a.*").topic_pattern.fullmatch("abc")
    assert read(assign='{"a":[0,2]}').assigned == {TopicPartition("a", 0), TopicPartition("a", 2)}
    with pytest.raises(OptionError, match="subscribe and assign exclude each other"):
        read(subscribe="a", assign='{"a":[0]}')


def test_several_paths_are_separated_by_commas_or_a_json_list():
    assert read_options({"path": "/a, /b"}, streaming=False).paths == ("/a", "/b")
    assert read_options({"path": '["/a,1", "/b"]'}, streaming=False).paths == ("/a,1", "/b")
    with pytest.raises(OptionError, match="option path is missing"):
        read_options({}, streaming=False)
    with pytest.raises(OptionError, match="records are read from files"):
        read_options({"kcore.bootstrap.servers": "localhost:9092"}, streaming=False)


def test_offsets_by_partition_are_the_connectors_json():
    parsed = read(startingOffsets='{"a":{"0":23,"1":-2}}', endingOffsets='{"a":{"0":50,"1":-1}}')
    assert parsed.starting.offsets == {TopicPartition("a", 0): 23, TopicPartition("a", 1): EARLIEST}
    assert parsed.ending.offsets == {TopicPartition("a", 0): 50, TopicPartition("a", 1): LATEST}


def test_a_timestamp_goes_before_timestamps_and_those_before_offsets():
    both = {"startingOffsets": "earliest", "startingOffsetsByTimestamp": '{"a":{"0":7}}'}
    assert read(**both).starting.timestamps == {TopicPartition("a", 0): 7}
    assert read(**both, startingTimestamp="9").starting.timestamp == 9


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"startingOffsets": "{"}, "startingOffsets: '{' is not JSON: .* at character 1"),
        ({"startingOffsets": "[1]"}, "expected a JSON object"),
        ({"startingOffsets": "soon"}, "is not JSON"),
        ({"startingOffsets": '{"a":3}'}, "topic 'a' has 3"),
        ({"startingOffsets": '{"a":{"x":3}}'}, "'x' is no partition's number"),
        ({"startingOffsets": '{"a":{"0":"3"}}'}, "'3' of a-0 is not a whole number"),
        ({"startingOffsets": '{"a":{"0":-3}}'}, "offset -3 of a-0"),
        ({"startingOffsets": '{"a":{"0":1},"a":{"0":2}}'}, "a name appears twice"),
        ({"startingOffsets": '{"a":{"0":1,"00":2}}'}, "a-0 appears twice"),
        ({"startingOffsets": "[" * 100_000}, "nested too deeply"),
        ({"paths": '["/a"]'}, "several directories are separated by commas, or are a JSON list"),
        ({"startingOffsets": f'{{"a":{{"0":{2**63}}}}}'}, "64 bits"),
        ({"startingOffsets": "latest"}, "must not be latest in a batch"),
        ({"startingOffsets": '{"a":{"0":-1}}'}, r"-1 \(latest\) for a-0 is not allowed in a batch"),
        ({"endingOffsets": "earliest"}, "must not be earliest"),
        ({"endingOffsets": '{"a":{"0":-2}}'}, r"-2 \(earliest\) for a-0 is not allowed"),
        ({"startingTimestamp": "yesterday"}, "startingTimestamp 'yesterday' is not a whole number"),
        ({"endingOffsetsByTimestamp": '{"a":{"0":-5}}'}, "timestamp -5 of a-0 is negative"),
        ({"startingOffsetsByTimestampStrategy": "first"}, "neither error nor latest"),
        ({"minPartitions": "0"}, "minPartitions '0' is not a whole number from 1 on"),
        ({"maxRecordsPerPartition": "1e6"}, "maxRecordsPerPartition '1e6'"),
        ({"maxBytesPerPartition": "10 furlongs"}, "units b, k, kb"),
        ({"includeHeaders": "yes"}, "includeHeaders 'yes' is neither true nor false"),
        ({"kafka.isolation.level": "snapshot"}, "neither read_uncommitted nor read_committed"),
        ({"subscribePattern": "("}, "is no regular expression"),
        ({"assign": '{"a":0}'}, "topic 'a' has 0"),
        ({"subscribe": " , "}, "names no topic"),
        ({"columns": "offset,vlaue"}, "there is no 'vlaue'; did you mean value"),
        ({"columns": "key,key"}, "expected different names"),
    ],
)
def test_an_impossible_value_is_an_error_with_the_reason(options, message):
    with pytest.raises(OptionError, match=message):
        read(**options)


def test_of_a_stream_no_more_can_be_required_than_is_allowed():
    with pytest.raises(OptionError, match="minOffsetsPerTrigger 10 is above maxOffsetsPerTrigger 5"):
        read(streaming=True, minOffsetsPerTrigger="10", maxOffsetsPerTrigger="5")
    assert read(streaming=True, maxTriggerDelay="90s").max_trigger_delay_ms == 90_000


def test_columns_are_those_of_the_options():
    assert default_columns({"columns": "offset, key"}) == ("offset", "key")
    assert default_columns({"includeheaders": "TRUE"}) == COLUMNS


def test_settings_of_the_client_keep_their_own_names():
    parsed = read(**{"kcore.client.security.protocol": "SSL", "kcore.bootstrap.servers": "h:1"})
    assert parsed.client_settings == {"security.protocol": "SSL"}
    assert parsed.bootstrap_servers == "h:1"
