"""Where `kcore serve` gets its settings from: a properties file, TOML, variables of the environment."""

import pytest

import kcore.tools.serve as serve_module
from kcore.tools.command_line import UsageError
from kcore.tools.main import main
from kcore.tools.serve_settings import settings_of_environment, settings_of_file, variable_of


class _Configured(Exception):
    """In the place of a broker."""


@pytest.fixture
def settings(monkeypatch):
    """settings(*arguments): what the broker would get."""

    def broker(data, port, host, *, store, **properties):
        raise _Configured({"data": data, "port": port, "host": host, **properties})

    monkeypatch.setattr(serve_module, "Broker", broker)
    for name in ("KAFKA_LOG_DIRS", "KAFKA_NUM_PARTITIONS"):
        monkeypatch.delenv(name, raising=False)

    def of(*arguments):
        with pytest.raises(_Configured) as raised:
            main(["serve", *map(str, arguments)])
        return raised.value.args[0]

    return of


@pytest.mark.parametrize(
    ("variable", "name"),
    [
        ("KAFKA_LOG_DIRS", "log.dirs"),
        ("KAFKA_LOG_RETENTION_MS", "log.retention.ms"),
        ("KAFKA_LISTENER_NAME_INTERNAL_SSL_KEYSTORE_LOCATION", "listener.name.internal.ssl.keystore.location"),
        ("KAFKA_A__B___C_D", "a_b-c.d"),
    ],
)
def test_a_variable_of_the_images_is_a_setting(variable, name):
    assert settings_of_environment({variable: "1"}) == {name: "1"}
    assert variable_of(name) == variable


@pytest.mark.parametrize(
    "variable",
    [
        *("KAFKA_HEAP_OPTS", "KAFKA_OPTS", "KAFKA_JMX_PORT", "KAFKA_LOG4J_LOGGERS", "KAFKA_HOME"),
        *("KAFKA_PORT", "KAFKA_SERVICE_HOST", "KAFKA_SERVICE_PORT_CLIENT", "KAFKA_PORT_9092_TCP_ADDR"),
        *("PATH", "KCORE_BOOTSTRAP", "kafka_log_dirs"),
    ],
)
def test_variables_for_java_and_of_kubernetes_are_no_settings(variable):
    assert settings_of_environment({variable: "tcp://10.0.0.1:9092"}) == {}


def test_the_environment_counts_only_if_it_is_asked_for(settings, tmp_path, monkeypatch):
    monkeypatch.setenv("KAFKA_NUM_PARTITIONS", "7")
    monkeypatch.setenv("KAFKA_LOG_DIRS", str(tmp_path / "data"))
    assert "num.partitions" not in settings("--data", tmp_path)
    found = settings("--environment")
    assert found["num.partitions"] == "7" and found["log.dirs"] == str(tmp_path / "data")


def test_the_command_line_goes_before_the_environment_and_this_before_the_file(settings, tmp_path, monkeypatch):
    file = tmp_path / "server.properties"
    file.write_text("num.partitions=1\nlog.retention.ms=2\nmessage.max.bytes=3000\n")
    monkeypatch.setenv("KAFKA_NUM_PARTITIONS", "4")
    monkeypatch.setenv("KAFKA_LOG_RETENTION_MS", "5")
    given = ["--environment", "--config", file, "--data", tmp_path, "-o", "num.partitions=6"]
    found = settings(*given)
    assert (found["num.partitions"], found["log.retention.ms"], found["message.max.bytes"]) == ("6", "5", "3000")


def test_toml_has_tables_for_the_parts_of_names(settings, tmp_path):
    file = tmp_path / "broker.toml"
    file.write_text(
        'num.partitions = 3\n"auto.create.topics.enable" = false\n'
        f'[log]\ndirs = ["{tmp_path}/a", "{tmp_path}/b"]\nretention.ms = 604800000\n[log.cleaner]\nenable = true\n'
    )
    found = settings("--config", file)
    assert found["log.dirs"] == f"{tmp_path}/a,{tmp_path}/b" and found["log.retention.ms"] == "604800000"
    assert (found["num.partitions"], found["auto.create.topics.enable"]) == ("3", "false")
    assert found["log.cleaner.enable"] == "true"


@pytest.mark.parametrize(
    ("text", "message"),
    [("log.dirs = ", "it is no TOML"), ("a = 1979-05-27", "a: expected a string"), ("a = [{b = 1}]", "a: expected")],
)
def test_what_is_no_setting_in_toml_is_an_error_that_names_the_file(tmp_path, text, message):
    file = tmp_path / "broker.toml"
    file.write_text(text)
    with pytest.raises(UsageError, match=message) as raised:
        settings_of_file(str(file))
    assert str(raised.value).startswith(f"{file}: ")


def test_a_misspelt_setting_is_an_error_that_names_its_variable_or_file_and_the_nearest_one(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.setenv("KAFKA_NUM_PARTITION", "4")
    assert main(["serve", "--environment", "--data", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert "KAFKA_NUM_PARTITION: Unknown broker setting num.partition; did you mean num.partitions?" in error
    monkeypatch.delenv("KAFKA_NUM_PARTITION")
    file = tmp_path / "server.properties"
    file.write_text("log.retention.mss=1\n")
    assert main(["serve", "--config", str(file), "--data", str(tmp_path)]) == 2
    assert f"{file}: Unknown broker setting log.retention.mss; did you mean" in capsys.readouterr().err
    file.write_text("num.partitions=many\n")
    assert main(["serve", "--config", str(file), "--data", str(tmp_path)]) == 2
    assert f"{file}: " in capsys.readouterr().err


def test_all_misspelt_settings_are_named_with_their_variables_and_file(tmp_path, monkeypatch, capsys):
    file = tmp_path / "server.properties"
    file.write_text("log.retention.mss=1\nxyzzy=2\nlog.retention.ms=3\n")
    monkeypatch.setenv("KAFKA_NUM_PARTITION", "4")
    monkeypatch.setenv("KAFKA_NUM_PARTITIONS", "4")
    monkeypatch.setenv("KAFKA_PLUGH", "5")
    arguments = ["--environment", "--config", str(file), "--data", str(tmp_path), "-o", "plover=6"]
    assert main(["serve", *arguments]) == 2
    assert capsys.readouterr().err == (
        f"kcore serve: {file}, KAFKA_NUM_PARTITION, KAFKA_PLUGH: Unknown broker settings: log.retention.mss (did you "
        "mean log.retention.ms?); xyzzy; num.partition (did you mean num.partitions?); plugh; plover\n"
    )


def test_a_misspelt_variable_is_named_beside_the_right_one(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("KAFKA_NUM_PARTITION", "4")
    monkeypatch.setenv("KAFKA_NUM_PARTITIONS", "4")
    assert main(["serve", "--environment", "--data", str(tmp_path)]) == 2
    assert capsys.readouterr().err.startswith("kcore serve: KAFKA_NUM_PARTITION: Unknown broker setting num.partition;")


def test_settings_of_one_broker_in_the_environment_are_refused_for_a_cluster(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("KAFKA_LISTENERS", "PLAINTEXT://127.0.0.1:0")
    assert main(["serve", "--environment", "--brokers", "2", "--data", str(tmp_path)]) == 2
    assert "listeners is not the same for all brokers" in capsys.readouterr().err


def test_the_settings_of_a_usual_kraft_container_serve_a_lone_broker(settings, monkeypatch, tmp_path):
    for name, value in {
        "NODE_ID": "1",
        "PROCESS_ROLES": "broker,controller",
        "LISTENERS": "PLAINTEXT://127.0.0.1:0,CONTROLLER://127.0.0.1:9093",
        "ADVERTISED_LISTENERS": "PLAINTEXT://localhost:9092",
        "CONTROLLER_LISTENER_NAMES": "CONTROLLER",
        "LISTENER_SECURITY_PROTOCOL_MAP": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
        "CONTROLLER_QUORUM_VOTERS": "1@localhost:9093",
        "OFFSETS_TOPIC_REPLICATION_FACTOR": "1",
        "LOG_DIRS": str(tmp_path),
    }.items():
        monkeypatch.setenv(f"KAFKA_{name}", value)
    found = settings("--environment")
    assert found["listeners"].startswith("PLAINTEXT://127.0.0.1:0") and found["node.id"] == "1"
