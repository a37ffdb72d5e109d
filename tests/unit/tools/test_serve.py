"""`kcore serve`: what it prints once it serves, and which arguments it refuses."""

import contextlib
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from kcore.log.clean_shutdown import was_clean_shutdown
from kcore.metadata import znodes
from kcore.metadata.open_store import open_store
from kcore.tools.main import main


def serve(*arguments, cwd=None, **environment):
    return subprocess.Popen(
        [sys.executable, "-m", "kcore.tools.main", "serve", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=cwd,
        env={**os.environ, **environment},
    )


def stopped(process):
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=60)
    return process.returncode, out, err


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_the_hints_name_the_port_that_was_taken_and_can_be_run_as_they_are(tmp_path, host):
    data = tmp_path / "my data"
    process = serve("--data", data, "--port", "0", "--host", host, "--hints", cwd=tmp_path)
    first = process.stdout.readline()
    advertised = "" if host == "127.0.0.1" else rf", advertised as {re.escape(socket.gethostname())}:\1"
    port = re.fullmatch(rf"kcore: serving {data} on 127\.0\.0\.1:(\d+){advertised}\n", first)[1]
    assert "next, in another terminal" in process.stdout.readline()
    hints = [process.stdout.readline() for _ in range(3)]
    status, out, err = stopped(process)
    assert (status, out) == (0, "kcore: stopped\n"), err
    assert port != "0" and f"127.0.0.1:{port}" in hints[0]
    commands = [shlex.split(line, comments=True) for line in hints]
    assert [command[1:] for command in commands[1:]] == [["dump", "my data/greetings-0"], ["verify", "my data"]]
    assert all(Path(tmp_path, command[0]).exists() for command in commands)
    assert subprocess.run(commands[2], cwd=tmp_path, capture_output=True, check=False).returncode == 0


def test_in_a_clone_the_first_hint_is_the_example(tmp_path):
    clone = Path(__file__).resolve().parents[3]
    process = serve("--data", tmp_path, "--port", "0", "--hints", cwd=clone)
    port = process.stdout.readline().rsplit(":", 1)[1].strip()
    process.stdout.readline()
    first = process.stdout.readline()
    assert stopped(process)[0] == 0
    assert first.split(" && ")[1].split()[1:] == ["examples/quickstart.py", f"127.0.0.1:{port}"]


def test_without_hints_one_line_has_the_address(tmp_path):
    process = serve("--data", tmp_path, "--port", "0")
    assert process.stdout.readline().startswith("kcore: serving")
    assert stopped(process)[1] == "kcore: stopped\n"


@pytest.mark.parametrize(
    ("settings", "shown"),
    [
        (["advertised.listeners=PLAINTEXT://127.0.0.1:0"], ""),
        (["advertised.listeners=PLAINTEXT://kafka.example:9092"], ", advertised as kafka.example:9092"),
        (
            [
                *(
                    "listeners=A://127.0.0.1:0,B://127.0.0.1:0",
                    "listener.security.protocol.map=A:PLAINTEXT,B:PLAINTEXT",
                ),
                *("inter.broker.listener.name=A", "advertised.listeners=A://localhost:1,B://[::1]:2"),
            ],
            ", advertised as A://localhost:1,B://[::1]:2",
        ),
    ],
)
def test_the_line_with_the_address_has_the_one_that_clients_are_told_where_that_is_another(tmp_path, settings, shown):
    options = [word for setting in settings for word in ("-o", setting)]
    process = serve("--data", tmp_path, "--port", "0", *options)
    line = process.stdout.readline()
    assert stopped(process)[0] == 0
    assert re.sub(r":\d+", ":PORT", line, count=1) == f"kcore: serving {tmp_path} on 127.0.0.1:PORT{shown}\n"


def test_with_monitoring_the_second_line_has_where_it_is(tmp_path):
    process = serve("--data", tmp_path, "--port", "0", "--monitoring", "127.0.0.1:0")
    process.stdout.readline()
    url = re.fullmatch(r"kcore: (http://127\.0\.0\.1:\d+)/metrics, /healthz, /readyz\n", process.stdout.readline())[1]
    with urllib.request.urlopen(f"{url}/readyz", timeout=60) as answer:
        assert answer.read() == b"ok\n"
    assert stopped(process)[1] == "kcore: stopped\n"


@pytest.mark.parametrize("level", ["VERBOS", "warnings", "7"])
def test_a_misspelt_log_level_is_refused_with_the_right_ones(tmp_path, level):
    process = serve("--data", tmp_path / "data", "--port", "0", KCORE_LOG_LEVEL=level)
    try:
        _, errors = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 2
    assert errors.splitlines() == [
        f"kcore serve: KCORE_LOG_LEVEL={level}: expected one of DEBUG, INFO, WARNING, ERROR, CRITICAL"
    ]
    assert not (tmp_path / "data").exists()


def test_a_start_that_fails_leaves_the_signals_of_its_process_as_they_were(tmp_path, capsys):
    assert main(["serve", "--data", str(tmp_path), "--port", "0", "-o", "log.segment.bytes=x"]) == 2
    assert "log.segment.bytes" in capsys.readouterr().err
    assert not signal.pthread_sigmask(signal.SIG_BLOCK, ())


@pytest.mark.parametrize("text", ["=", " =x", "num.partitions", ""])
@pytest.mark.parametrize("brokers", [[], ["--brokers", "2"]])
def test_a_setting_without_a_name_or_a_value_is_refused_with_the_form_that_is_expected(text, brokers, tmp_path, capsys):
    assert main(["serve", "--data", str(tmp_path), "--port", "0", "-o", text, *brokers]) == 2
    out, err = capsys.readouterr()
    assert not out and f"{text!r}: expected KEY=VALUE, as num.partitions=3" in err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("brokers", [[], ["--brokers", "2"]])
def test_a_file_as_data_directory_is_named_with_the_option(brokers, tmp_path, capsys):
    path = tmp_path / "file"
    path.write_text("x")
    assert main(["serve", "--data", str(path), "--port", "0", *brokers]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f": {path}: this is a file, give a directory as data_dir " in line and "--data" in line


def test_each_setting_without_effect_is_logged_once(tmp_path):
    process = serve("--data", tmp_path, "--port", "0", "-o", "background.threads=8")
    process.stdout.readline()
    assert stopped(process)[2].count("background.threads=8") == 1


@pytest.mark.parametrize("store", [None, "cluster.db"])
def test_what_becomes_of_zookeeper_connect_is_said(store, tmp_path):
    config = tmp_path / "server.properties"
    config.write_text(f"zookeeper.connect=zk1:2181,zk2:2181/kafka\nlog.dirs={tmp_path / 'data'}\nbroker.id=1\n")
    process = serve("--config", config, "--port", "0", *(["--store", f"sqlite:{tmp_path / store}"] if store else []))
    assert process.stdout.readline().startswith("kcore: serving")
    status, _, err = stopped(process)
    assert status == 0 and "has no effect" not in err
    used = f"its store is sqlite:{tmp_path / store}" if store else f"it is alone, with its store in {tmp_path / 'data'}"
    assert f"kcore: zookeeper.connect is not used: {used}; " in err
    assert "a broker of that cluster has --store zookeeper://zk1:2181,zk2:2181/kafka\n" in err


def test_each_data_directory_is_named(tmp_path):
    config = tmp_path / "server.properties"
    config.write_text(f"log.dirs={tmp_path / 'a'},{tmp_path / 'b'}\n")
    process = serve("--config", config, "--port", "0")
    assert process.stdout.readline().startswith(f"kcore: serving {tmp_path / 'a'},{tmp_path / 'b'} on 127.0.0.1:")
    assert stopped(process)[0] == 0


@pytest.mark.parametrize("name", ["log.dirs", "log.dir"])
def test_data_replaces_the_log_dirs_of_the_config_file_but_not_those_of_the_command_line(name, tmp_path):
    config = tmp_path / "server.properties"
    config.write_text(f"{name}={tmp_path / 'file'}\n")
    arguments = ["--data", tmp_path / "data", "--port", "0", "--config", config]
    process = serve(*arguments)
    assert process.stdout.readline().startswith(f"kcore: serving {tmp_path / 'data'} on")
    assert stopped(process)[0] == 0
    process = serve(*arguments, "-o", f"{name}={tmp_path / 'a'}")
    _, err = process.communicate(timeout=60)
    assert process.returncode == 2
    assert f"data_dir {tmp_path / 'data'} and log.dirs {tmp_path / 'a'} are both given" in err


def test_a_signal_ends_a_start_that_waits_for_the_last_session_of_its_id(tmp_path):
    """It came into effect only when the wait was over, after 20 s by default."""
    address = f"sqlite:{tmp_path / 'cluster.db'}"
    with contextlib.closing(open_store(address)) as store:
        store.create_recursive(znodes.BROKER_IDS)
        store.create(znodes.broker_id(0), b"{}", ephemeral=True)
        process = serve("--data", tmp_path / "0", "--port", 0, "--id", 0, "--store", address)
        assert any("waits for the session" in line for line in process.stderr)
        code, out, err = stopped(process)
        assert (code, err) == (0, "")
        assert out.startswith("kcore: stopped: broker 0 waited for the last session")
        assert store.get(znodes.broker_id(0)) is not None
    assert was_clean_shutdown(str(tmp_path / "0"))


def test_a_signal_ends_the_wait_for_a_controller_of_a_start(tmp_path):
    """One on a full disk waited 18 s for its metadata before it stopped."""
    address = f"sqlite:{tmp_path / 'cluster.db'}"
    with contextlib.closing(open_store(address)) as store:
        # Of a broker that does not answer: nobody sends metadata.
        controller = znodes.ControllerZNode(7, 0).encode()
        store.create(znodes.CONTROLLER, controller, ephemeral=True)
        # It waits for a session's timeout.
        timeout = "zookeeper.session.timeout.ms=600000"
        process = serve("--data", tmp_path / "0", "--port", 0, "--id", 0, "--store", address, "-o", timeout)
        assert any("is registered" in line for line in process.stderr)
        code, out, err = stopped(process)
        assert code == 0 and out.endswith("kcore: stopped\n") and "has not received metadata" in err
        assert store.get(znodes.broker_id(0)) is None
