"""A wrong argument of a Broker or a topic is refused with the argument's name in the message."""

import numpy as np
import pytest

import kcore
from kcore.errors import (
    InvalidConfig,
    InvalidPartitions,
    InvalidRequest,
    InvalidTopicException,
    UnknownTopicOrPartition,
)
from kcore.protocol.messages import delete_topics as dt
from kcore.testing import MockTime
from tests.unit.server.client import Client


@pytest.mark.parametrize("port", ["23011", None, 1.5, True, b"1"])
def test_a_port_that_is_no_int_is_refused(port):
    with pytest.raises(TypeError, match="port must be an int") as raised:
        kcore.Broker(port=port)
    assert repr(port) in str(raised.value)


@pytest.mark.parametrize("port", [-1, 65_536, 70_000])
def test_a_port_out_of_range_is_refused(port):
    with pytest.raises(InvalidConfig, match=f"port {port} is not one of 0 to 65535"):
        kcore.Broker(port=port)


@pytest.mark.parametrize("host", [5, None, b"127.0.0.1"])
def test_a_host_that_is_no_str_is_refused(host):
    with pytest.raises(TypeError, match="host must be a str"):
        kcore.Broker(host=host)


@pytest.mark.parametrize("data_dir", [5, 23011, object()])
def test_a_data_dir_that_is_no_path_is_refused(data_dir):
    with pytest.raises(TypeError, match="data_dir must be a path"):
        kcore.Broker(data_dir)


@pytest.mark.parametrize(
    ("name", "meant"), [("prot", "port"), ("datadir", "data_dir"), ("data.dirs", "data_dir"), ("hots", "host")]
)
def test_a_misspelt_argument_is_refused_with_the_right_one(name, meant):
    with pytest.raises(InvalidConfig, match=f"Unknown broker setting .*; did you mean {meant}?"):
        kcore.Broker(**{name: "x"})


@pytest.mark.parametrize("name", ["config", "settings"])
@pytest.mark.parametrize("kind", [kcore.Broker, kcore.Cluster])
def test_settings_in_a_dict_as_the_marker_has_them_are_refused_and_the_error_says_how_to_give_them(kind, name):
    with pytest.raises(InvalidConfig) as raised:
        kind(**{name: {"num.partitions": 3}})
    assert str(raised.value) == (
        f"Unknown broker setting {name}; settings are keyword arguments: write **{{...}} instead of {name}={{...}}, or "
        "num_partitions=3"
    )
    assert kind(**{"num.partitions": 3})  # as it says


def test_settings_of_a_topic_in_a_dict_are_refused_and_the_error_says_how_to_give_them():
    with kcore.Broker() as broker:
        with pytest.raises(InvalidConfig, match=r"write \*\*{\.\.\.} instead of config={\.\.\.}, or retention_ms=1000"):
            broker.create_topic("t", config={"retention.ms": 1})
        broker.create_topic("t", **{"retention.ms": 1})


@pytest.mark.parametrize(
    "start", [lambda path: kcore.Broker(path).start(), lambda path: kcore.Cluster(2, path).start()]
)
def test_a_data_dir_that_is_a_file_is_refused_with_its_path_and_the_arguments_name(start, tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(NotADirectoryError, match="this is a file, give a directory as data_dir") as raised:
        start(tmp_path / "file")
    assert raised.value.filename == str(tmp_path / "file")


def test_a_data_dir_that_is_a_partitions_directory_is_refused_and_left_as_it_was(tmp_path):
    with kcore.open_log(tmp_path / "orders-0", "a"):
        pass
    before = sorted(path.name for path in (tmp_path / "orders-0").iterdir())
    with pytest.raises(InvalidConfig, match=f"data_dir .*orders-0 .* give {tmp_path}"):
        kcore.Broker(tmp_path / "orders-0").start()
    assert sorted(path.name for path in (tmp_path / "orders-0").iterdir()) == before


def test_topics_and_partitions_of_a_wrong_type_or_number_are_refused():
    with kcore.Broker() as broker:
        for name in ("a b", "", ".", "x" * 250):
            with pytest.raises(InvalidTopicException, match="Topic name is invalid"):
                broker.create_topic(name)
        for name in (5, None, b"t"):
            for use in (broker.create_topic, broker.delete_topic, broker.log):
                with pytest.raises(TypeError, match="must be a str"):
                    use(name)
        for partitions in ("3", None, 1.5, True):
            with pytest.raises(TypeError, match="partitions must be an int"):
                broker.create_topic("t", partitions=partitions)
        for partitions in (0, -2):
            with pytest.raises(InvalidPartitions, match=f"partitions={partitions}"):
                broker.create_topic("t", partitions=partitions)
        with pytest.raises(InvalidConfig, match=r"retention\.m; did you mean retention\.ms\?"):
            broker.create_topic("t", retention_m=5)
        assert list(broker.metadata_cache.snapshot.topic_names()) == []
        broker.create_topic("t")
        for partition in ("0", None, 0.0):
            with pytest.raises(TypeError, match="partition must be an int"):
                broker.log("t", partition)
        with pytest.raises(UnknownTopicOrPartition, match="t-1: no such partition"):
            broker.log("t", 1)


def test_an_empty_data_dir_is_refused_and_not_the_current_directory():
    with pytest.raises(InvalidConfig, match="data_dir is empty"):
        kcore.Broker("")


def test_a_time_that_is_no_clock_is_refused():
    with pytest.raises(TypeError, match=r"time must be a clock .* not 5"):
        kcore.Broker(time=5)


def test_a_data_dir_with_a_comma_is_not_shown_as_two_log_dirs(tmp_path):
    directory = tmp_path / "a,b"
    with kcore.Broker(directory) as broker:
        assert (broker.config["log.dirs"], broker.config["log.dir"]) == (None, str(directory))
        broker.produce("orders", "a")
        assert [path.name for path in tmp_path.iterdir()] == ["a,b"]
    with kcore.Broker(tmp_path / "c") as broker:
        assert broker.config["log.dirs"] == str(tmp_path / "c")


def test_data_dir_and_log_dirs_together_are_refused(tmp_path):
    for name in ("log_dirs", "log_dir"):
        with pytest.raises(InvalidConfig, match=r"data_dir .*/a and log\.dirs b are both given"):
            kcore.Broker(tmp_path / "a", **{name: "b"})


@pytest.mark.parametrize("setting", [{"log_dirs": ""}, {"log_dir": " , "}, {"log_dirs": "", "log_dir": "a"}])
def test_an_empty_setting_of_data_directories_is_no_wish_for_a_temporary_one(setting):
    with pytest.raises(InvalidConfig, match=r"log\.dirs? is empty"):
        kcore.Broker(**setting)


@pytest.mark.parametrize("now_ms", ["5", 1.5, True])
def test_a_mock_time_that_is_no_int_is_refused(now_ms):
    with pytest.raises(TypeError, match="now_ms must be an int"):
        MockTime(now_ms)


@pytest.mark.parametrize("timeout", [None, "1", True])
def test_a_timeout_that_is_no_number_is_refused(timeout):
    with kcore.Broker() as broker:
        broker.produce("t", b"x")
        with pytest.raises(TypeError, match="timeout must be a number"):
            broker.consume("t", timeout=timeout)


def test_numbers_of_numpy_are_numbers():
    with kcore.Broker() as broker:
        for value in (b"x", b"y"):
            broker.produce("t", value, partition=np.int32(0))
        read = broker.consume("t", np.int64(0), np.int64(1), np.int16(5), np.float32(0.0))
        assert [record.value for record in read] == [b"y"]
        with pytest.raises(TypeError, match="start_offset must be an int"):
            broker.consume("t", start_offset=1.0)


def test_an_internal_topic_is_not_deleted():
    with kcore.Broker(offsets_topic_num_partitions=1) as broker, Client(broker) as client:
        broker.create_topic("__consumer_offsets")
        with pytest.raises(InvalidRequest, match="'__consumer_offsets' is internal"):
            broker.delete_topic("__consumer_offsets")
        by_id = dt.DeleteTopicState(topic_id=broker.metadata_cache.topic_id("__consumer_offsets"))
        for request in (
            dt.DeleteTopicsRequest(topics=[by_id]),
            dt.DeleteTopicsRequest(topics=[dt.DeleteTopicState(name="__consumer_offsets")]),
        ):
            (answer,) = client.ask(request, 6).responses
            assert answer.error_code == InvalidRequest.code and "is internal" in answer.error_message
        assert "__consumer_offsets" in broker.metadata_cache.snapshot.topic_names()


@pytest.mark.parametrize("name", ["max.connections.per.ip", "max_connections_per_ip"])
def test_a_broker_that_would_refuse_every_connection_does_not_start(name):
    with pytest.raises(InvalidConfig, match=r"max\.connections\.per\.ip"):
        kcore.Broker(**{name: 0})
