"""GET /metrics, /healthz and /readyz of a running broker."""

import errno
import socket
import threading
import urllib.error
import urllib.request
from contextlib import ExitStack
from http import HTTPStatus

import pytest
from prometheus_client.parser import text_string_to_metric_families

import kcore
from kcore.errors import InvalidConfig
from kcore.metadata.embedded_store import EmbeddedStore
from kcore.server.monitoring import http_endpoint
from kcore.server.monitoring.http_endpoint import Reports, serve_monitoring
from tests.waiting import wait_until

FREE_PORT = "127.0.0.1:0"


def get(url, path, method="GET"):
    """(status, headers, body)"""
    try:
        with urllib.request.urlopen(urllib.request.Request(url + path, method=method), timeout=30) as answer:
            return answer.status, answer.headers, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.headers, error.read().decode()


@pytest.fixture
def reports():
    return Reports(lambda: "", lambda: None)


@pytest.fixture
def url(reports):
    with ExitStack() as parts:
        yield f"http://127.0.0.1:{serve_monitoring('127.0.0.1', 0, reports, parts)}"


def test_prometheus_reads_the_broker_and_its_process():
    with kcore.Broker(kcore_monitoring_address=FREE_PORT) as broker:
        broker.create_topic("orders", 2)
        broker.produce("orders", b"a book", partition=1)
        status, headers, body = get(broker.monitoring_url, "/metrics?name=all")
        assert (status, headers["Content-Type"]) == (200, "text/plain; version=0.0.4; charset=utf-8")
        values = {
            (sample.name, *sorted(sample.labels.items())): sample.value
            for family in text_string_to_metric_families(body)
            for sample in family.samples
        }
        assert values["kafka_server_brokertopicmetrics_messagesin_total", ("topic", "orders")] == 1
        assert values["kafka_log_log_logendoffset", ("partition", "1"), ("topic", "orders")] == 1
        assert values["kafka_server_replicamanager_leadercount",] == 2
        assert values["process_open_fds",] > 0
        of_mbeans = {name for name, *_ in values if name.startswith("kafka_")}
        assert len(of_mbeans) >= len({(name.group, name.type_name, name.name) for name in broker.metrics()})
        assert get(broker.monitoring_url, "/metrics", "HEAD")[2] == ""


def test_only_three_paths_are_there(url):
    assert get(url, "/healthz")[::2] == get(url, "/readyz")[::2] == (200, "ok\n")
    assert get(url, "/")[::2] == (404, "not here: /metrics, /healthz, /readyz\n")
    assert get(url, "/metrics", "POST")[0] == HTTPStatus.NOT_IMPLEMENTED


def test_a_broker_without_the_setting_has_no_port_for_it():
    with kcore.Broker() as broker:
        assert broker.monitoring_url is None


@pytest.mark.parametrize("address", ["", "9404", "host", "host:", "h:1:2", "::1:9404", "h:65536", "http://h:1"])
def test_an_address_that_is_none_is_refused(address):
    with pytest.raises(InvalidConfig, match=r"kcore\.monitoring\.address: expected HOST:PORT"):
        kcore.Broker(kcore_monitoring_address=address)


def test_a_port_that_is_taken_ends_the_start_and_nothing_stays():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        broker = kcore.Broker(kcore_monitoring_address=f"127.0.0.1:{taken.getsockname()[1]}")
        with pytest.raises(OSError, match=r"cannot listen on kcore.monitoring.address 127.0.0.1:\d+: .*in use"):
            broker.start()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("kcore-http")]


def test_the_port_stays_over_a_restart_and_is_free_after_the_stop():
    with kcore.Broker(kcore_monitoring_address=FREE_PORT) as broker:
        url = broker.monitoring_url
        broker.restart()
        assert broker.monitoring_url == url
        assert get(url, "/readyz")[0] == 200
    with pytest.raises(urllib.error.URLError, match="refused"):
        get(url, "/readyz")
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("kcore-http")]


def test_while_the_logs_are_loaded_a_broker_is_alive_and_not_ready(monkeypatch):
    answers = []
    broker = kcore.Broker(kcore_monitoring_address=FREE_PORT)
    start_running = kcore.server.broker.start_running

    def look(*arguments):
        answers.extend(get(broker.monitoring_url, path)[::2] for path in ("/healthz", "/readyz"))
        answers.append("kafka_" in get(broker.monitoring_url, "/metrics")[2])
        return start_running(*arguments)

    monkeypatch.setattr(kcore.server.broker, "start_running", look)
    with broker:
        assert answers == [(200, "ok\n"), (503, "the broker starts\n"), False]
        assert get(broker.monitoring_url, "/readyz")[::2] == (200, "ok\n")


def test_a_member_is_ready_while_its_session_lives(tmp_path):
    store = EmbeddedStore(str(tmp_path / "store"), session_timeout_ms=6000)
    settings = {"kcore_monitoring_address": FREE_PORT, "broker_id": 1}
    with kcore.Broker(str(tmp_path / "data"), store=store, **settings) as broker:
        assert get(broker.monitoring_url, "/readyz")[::2] == (200, "ok\n")
        broker.running.membership.is_certain.session_ended(1 << 40)
        status, _, reason = get(broker.monitoring_url, "/readyz")
        assert (status, reason) == (503, "its session with the metadata store has ended, or may have\n")
        assert get(broker.monitoring_url, "/healthz")[0] == 200
    store.close()


def test_a_client_that_asks_nothing_does_not_hold_up_others_or_the_stop(reports):
    with ExitStack() as parts:
        port = serve_monitoring("127.0.0.1", 0, reports, parts)
        silent = parts.enter_context(socket.create_connection(("127.0.0.1", port)))
        silent.sendall(b"GET /metrics HTTP/1.1\r\n")
        assert get(f"http://127.0.0.1:{port}", "/healthz")[0] == 200
    assert not [thread for thread in threading.enumerate() if "process_request_thread" in thread.name]


def test_a_silent_client_is_left_after_a_time(monkeypatch, url):
    monkeypatch.setattr(http_endpoint._Handler, "timeout", 0.05)
    with socket.create_connection(("127.0.0.1", int(url.rsplit(":", 1)[1]))) as silent:
        silent.settimeout(30)
        assert silent.recv(1) == b""
    wait_until(lambda: not [t for t in threading.enumerate() if "process_request_thread" in t.name])


def test_where_no_descriptor_is_left_it_waits_and_answers_later(reports, monkeypatch, caplog):
    accept, failures = http_endpoint.ThreadingHTTPServer.get_request, [OSError(errno.EMFILE, "Too many open files")]

    def get_request(server):
        if failures:
            raise failures.pop()
        return accept(server)

    monkeypatch.setattr(http_endpoint.ThreadingHTTPServer, "get_request", get_request)
    with ExitStack() as parts:
        assert get(f"http://127.0.0.1:{serve_monitoring('127.0.0.1', 0, reports, parts)}", "/readyz")[0] == 200
    assert "Too many open files" in caplog.text


def test_a_report_that_fails_costs_that_request_only(caplog):
    def fail():
        raise ValueError("a fault")

    with ExitStack() as parts:
        url = f"http://127.0.0.1:{serve_monitoring('127.0.0.1', 0, Reports(fail, lambda: None), parts)}"
        with pytest.raises((urllib.error.URLError, ConnectionError)):
            get(url, "/metrics")
        assert get(url, "/readyz")[0] == 200
    assert "ValueError: a fault" in caplog.text
