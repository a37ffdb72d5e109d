import os
import signal
import subprocess
import sys
import time

import pytest

import kcore
from kcore.mirror.topic_mirror import TopicMirror
from kcore.tools.command_line import UsageError, addresses
from kcore.tools.main import main
from tests.unit.tools.command import run_json


def test_a_topic_is_copied_and_diff_finds_no_difference(tmp_path, capsys):
    with kcore.Broker(tmp_path / "source") as broker:
        for n in range(30):
            broker.produce("orders", f"value {n}")
        status, copies = run_json(capsys, "mirror", broker.bootstrap_servers, "orders", tmp_path / "copy")
        assert status == 0
        assert copies == [
            {
                "topic": "orders",
                "partition": 0,
                "leader_id": 1,
                "previous_end_offset": 0,
                "log_start_offset": 0,
                "log_end_offset": 30,
                "lag": 0,
            }
        ]
        assert main(["mirror", broker.bootstrap_servers, "orders", str(tmp_path / "copy")]) == 0
        assert capsys.readouterr().out == "orders-0: 0 offsets copied from broker 1, now 0 to 30\n"
        assert main(["mirror", broker.bootstrap_servers, "invoices", str(tmp_path / "copy")]) == 2
        assert "invoices" in capsys.readouterr().err
    assert main(["diff", str(tmp_path / "source" / "orders-0"), str(tmp_path / "copy" / "orders-0")]) == 0
    assert "no difference" in capsys.readouterr().out


def test_addresses_are_read_as_clients_do():
    assert addresses("a:1, b,[::1]:2,[::1]") == [("a", 1), ("b", 9092), ("::1", 2), ("::1", 9092)]
    for text in ("", "a:", ":1", "a:x", "a:70000", "a:1,,b:2"):
        with pytest.raises(UsageError, match="HOST:PORT"):
            addresses(text)


def test_partitions_are_numbers(capsys):
    assert main(["mirror", "127.0.0.1:1", "orders", "copy", "--partitions", "0,-1"]) == 2
    assert "partition numbers" in capsys.readouterr().err


def test_sigterm_ends_a_mirror_that_follows_with_the_logs_closed(tmp_path):
    with kcore.Broker(tmp_path / "source") as broker:
        broker.produce("orders", "value")
        command = [sys.executable, "-m", "kcore.tools.main", "mirror", broker.bootstrap_servers, "orders"]
        process = subprocess.Popen(
            [*command, str(tmp_path / "copy"), "--follow"], stdout=subprocess.PIPE, text=True, env=os.environ
        )
        try:
            deadline = time.monotonic() + 60
            log = tmp_path / "copy" / "orders-0" / f"{0:020}.log"
            while not log.exists() or not log.stat().st_size:
                assert time.monotonic() < deadline and process.poll() is None
                time.sleep(0.02)
            process.send_signal(signal.SIGTERM)
            out, _ = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == 0
    assert out == "orders-0: 1 offset copied from broker 1, now 0 to 1\n"
    assert (tmp_path / "copy" / ".kafka_cleanshutdown").exists()


def test_an_append_that_a_signal_meets_halfway_is_in_the_last_lines(tmp_path, monkeypatch, capsys):
    wait_until_caught_up, close = TopicMirror.wait_until_caught_up, TopicMirror.close

    def append_and_close(mirror):
        wait_until_caught_up(mirror)
        close(mirror)

    monkeypatch.setattr(TopicMirror, "wait_until_caught_up", lambda mirror, timeout_ms: None)  # as after stop()
    monkeypatch.setattr(TopicMirror, "close", append_and_close)
    with kcore.Broker(tmp_path / "source") as broker:
        broker.produce("orders", "value")
        status, (copy,) = run_json(capsys, "mirror", broker.bootstrap_servers, "orders", tmp_path / "copy")
    assert (status, copy["log_end_offset"], copy["lag"]) == (0, 1, 0)


def test_what_does_not_answer_is_named(tmp_path, capsys):
    assert main(["mirror", "127.0.0.1:1", "orders", str(tmp_path)]) == 2
    assert "127.0.0.1:1: " in capsys.readouterr().err
