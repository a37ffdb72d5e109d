"""Which process of this machine serves an address or a directory, and whether it stands still."""

import os
import subprocess
import sys

import pytest

import kcore
from kcore.client import broker_process
from kcore.client.broker_process import BrokerProcess, process_of_address, process_of_data_dir
from tests import paused_process


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_the_process_of_an_address_and_of_a_directory_is_the_one_that_serves_it(tmp_path, host):
    expected = BrokerProcess(os.getpid(), (str(tmp_path),))
    with kcore.Broker(tmp_path) as broker:
        found = process_of_address(host, broker.port)
        assert found is not None and found.pid == expected.pid and str(tmp_path) in found.data_dirs
        by_path = process_of_data_dir(str(tmp_path))
        assert by_path is not None and by_path.pid == os.getpid()
    assert process_of_address(host, broker.port) is None
    assert process_of_data_dir(str(tmp_path)) is None


@pytest.mark.parametrize("listen", ["0.0.0.0", "::", "::1", "::ffff:127.0.0.1"])
def test_a_listener_on_all_addresses_or_of_ipv6_is_found(listen):
    with _listener(listen) as (process, port):
        host = "::1" if listen == "::1" else "127.0.0.1"
        found = process_of_address(host, port)
        assert found == BrokerProcess(process.pid, ())


def test_an_address_of_another_machine_belongs_to_no_process_here():
    with _listener("0.0.0.0") as (_, port):
        assert process_of_address("192.0.2.1", port) is None  # TEST-NET-1
        assert process_of_address("no-such-host.invalid", port) is None


def test_a_process_stands_still_while_it_is_stopped_and_no_longer(tmp_path):
    with _listener("127.0.0.1") as (process, port):
        found = process_of_address("127.0.0.1", port)
        assert found.stopped_reason() is None and found.how_to_continue() is None
        paused_process.pause(process)
        reason = f"its process {process.pid} stands still, stopped by SIGSTOP or a terminal"
        assert found.stopped_reason() == reason
        assert found.how_to_continue() == f"continue its process: `kill -CONT {process.pid}`"
        checkpoint = tmp_path / "replication-offset-checkpoint"
        checkpoint.write_text("0\n0\n")
        os.utime(checkpoint, (0, 86_400))
        with_data = BrokerProcess(process.pid, (str(tmp_path),)).stopped_reason()
        assert with_data.startswith(f"{reason}; it ran until 1970-01-0") and with_data.endswith(" at least")
        paused_process.resume(process)
        assert found.stopped_reason() is None
    assert found.stopped_reason() is None  # it has ended


def test_without_proc_nothing_is_known(monkeypatch, tmp_path):
    real_open, real_listdir = open, os.listdir

    def no_proc(function):
        def call(path, *words, **options):
            if str(path).startswith("/proc"):
                raise FileNotFoundError(path)
            return function(path, *words, **options)

        return call

    monkeypatch.setattr("builtins.open", no_proc(real_open))
    monkeypatch.setattr(broker_process.os, "listdir", no_proc(real_listdir))
    assert process_of_address("127.0.0.1", 9092) is None
    assert process_of_data_dir(str(tmp_path)) is None
    assert BrokerProcess(os.getpid(), ()).stopped_reason() is None


class _listener:
    """A process that listens at an address of its own port."""

    def __init__(self, host):
        code = (
            "import socket, sys\n"
            f"family = socket.AF_INET6 if ':' in {host!r} else socket.AF_INET\n"
            "s = socket.socket(family)\n"
            "if family == socket.AF_INET6: s.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)\n"
            f"s.bind(({host!r}, 0)); s.listen()\n"
            "print(s.getsockname()[1], flush=True)\n"
            "sys.stdin.read()\n"
        )
        self._process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def __enter__(self):
        line = self._process.stdout.readline()
        if not line:
            self.__exit__()
            pytest.skip("this machine has no such address")
        return self._process, int(line)

    def __exit__(self, *error):
        self._process.kill()
        self._process.wait()
        self._process.stdin.close()
        self._process.stdout.close()
