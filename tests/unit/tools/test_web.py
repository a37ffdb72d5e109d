"""`kcore web` and `kcore serve --http` as processes."""

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request

import pytest

import kcore
from kcore.tools.main import main
from tests.waiting import wait_until


@contextlib.contextmanager
def started(*arguments):
    """The process, which has ended at the end of the block."""
    process = subprocess.Popen(
        [sys.executable, "-m", "kcore.tools.main", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def read(url):
    """(status, text); 0 where nobody listens."""
    try:
        with urllib.request.urlopen(url, timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
    except OSError:
        return 0, ""


def is_reached(host, port):
    try:
        with socket.create_connection((host, port), timeout=60):
            return True
    except ConnectionRefusedError:
        return False


def url_of(process, lines):
    """The page's address is in the last of so many lines."""
    printed = [process.stdout.readline() for _ in range(lines)]
    return re.search(r"(http://[^/\s]+/)$", printed[-1].rstrip())[1]


def ended(process, number):
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    return process.returncode, out, err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_page_is_served_until_a_signal_ends_it(number):
    with (
        kcore.Broker() as broker,
        started("web", "--bootstrap", broker.bootstrap_servers, "--http", "127.0.0.1:0") as process,
    ):
        url = url_of(process, 1)
        status, text = read(url)
        assert (status, broker.bootstrap_servers in text) == (200, True)
        assert ended(process, number) == (0, "", "")
        assert read(url)[0] == 0


def test_directories_are_served_without_a_cluster(tmp_path):
    with kcore.Broker(str(tmp_path)) as broker:
        broker.create_topic("orders")
    with started("web", tmp_path, "--http", "127.0.0.1:0") as process:
        text = read(url_of(process, 1))[1]
        assert str(tmp_path) in text and "/topics" not in text


def test_the_directory_around_data_directories_is_refused_with_the_names_of_those(tmp_path, capsys):
    (tmp_path / "0" / "orders-0").mkdir(parents=True)
    (tmp_path / "0" / "orders-0" / f"{0:020}.log").touch()
    assert main(["web", str(tmp_path), "--http", "127.0.0.1:-1"]) == 2
    assert "; its directory 0 holds some: name that" in capsys.readouterr().err


def test_an_address_that_others_reach_is_served_with_a_warning(tmp_path):
    with started("web", tmp_path, "--http", "0.0.0.0:0", "--http-admin", "--http-name", "kafka.example") as process:
        url = url_of(process, 1)
        for host, status in (("kafka.example", 200), ("192.0.2.1:80", 200), ("other.example", 421)):
            assert read(urllib.request.Request(url, headers={"host": host}))[0] == status
        err = ended(process, signal.SIGTERM)[2]
    warning = r"everybody who reaches 0\.0\.0\.0:\d+ can read and delete all topics: the page asks for no password"
    assert re.fullmatch(f"kcore: {warning}\n", err)


@pytest.mark.parametrize(
    ("host", "reaches_other_addresses"),
    [
        *(("", False), ("127.0.0.1", False), ("0.0.0.0", True)),
        pytest.param("[::]", True, marks=pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="needs IPv6")),
    ],
)
@pytest.mark.parametrize("command", ["web", "serve", "serve --brokers 2"])
def test_a_port_without_a_host_is_on_loopback_and_only_0_0_0_0_and_the_like_are_all_addresses(
    command, host, reaches_other_addresses, tmp_path
):
    words = command.split()
    rest = [tmp_path] if command == "web" else ["--data", tmp_path / "data", "--port", 0]
    with started(*words, *rest, "--http", f"{host}:0") as process:
        port = int(url_of(process, 1 if command == "web" else 2).rsplit(":", 1)[1].rstrip("/"))
        assert is_reached("127.0.0.1", port)
        assert is_reached("127.0.0.2", port) == reaches_other_addresses  # also this machine, but no address of its own
        ended(process, signal.SIGTERM)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--http", "8080"], "--http 8080: expected HOST:PORT"),
        (["--http", "{taken}"], "--http {taken}: Address already in use"),
        (["/no/such/directory"], "/no/such/directory: No such file or directory"),
        (["--bootstrap", "x:y"], "'x:y' is no HOST:PORT"),
        (["--bootstrap", "x:1,http://x:2"], "'http://x:2' is no HOST:PORT: leave http:// out"),
    ],
)
def test_a_page_that_cannot_be_served_exits_2(arguments, reason, capsys):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        assert main(["web", *(argument.format(taken=address) for argument in arguments)]) == 2
    assert capsys.readouterr().err.startswith(f"kcore: {reason.format(taken=address)}")


def test_a_page_beside_a_broker_ends_with_it(tmp_path):
    with started("serve", "--data", tmp_path, "--port", 0, "--http", "127.0.0.1:0") as process:
        url = url_of(process, 2)
        assert "Brokers of the cluster" in wait_until(lambda: read(url)[1])
        assert ended(process, signal.SIGTERM)[:2] == (0, "kcore: stopped\n")
        assert read(url)[0] == 0


def test_a_page_ends_with_a_broker_that_is_killed(tmp_path):
    with started("serve", "--data", tmp_path, "--port", 0, "--http", "127.0.0.1:0") as process:
        url = url_of(process, 2)
        wait_until(lambda: read(url)[0] == 200)
        process.kill()
        wait_until(lambda: read(url)[0] == 0)


def test_a_page_is_served_beside_several_brokers(tmp_path):
    arguments = ["--data", tmp_path, "--brokers", 2, "--port", 0, "--http", "127.0.0.1:0"]
    with started("serve", *arguments) as process:
        url = url_of(process, 2)
        text = wait_until(lambda: read(url)[1])
        assert len(re.findall(r"<td>127\.0\.0\.1:\d+</td>", text)) == 2
        status, _, err = ended(process, signal.SIGTERM)
        assert (status, read(url)[0]) == (0, 0), err


@pytest.mark.parametrize("brokers", [[], ["--brokers", "2"]])
def test_a_broker_does_not_start_where_its_page_cannot(tmp_path, brokers, capfd):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        assert main(["serve", "--data", str(tmp_path / "data"), "--port", "0", "--http", address, *brokers]) == 2
    assert f"--http {address}: Address already in use" in capfd.readouterr().err
    assert not os.path.exists(tmp_path / "data")
