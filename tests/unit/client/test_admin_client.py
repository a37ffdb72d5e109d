"""AdminClient against brokers that are scripted: who answers, who refuses the connection."""

import socket
from concurrent.futures import ThreadPoolExecutor

import pytest

import kcore
from kcore.client import admin_client
from kcore.client.admin_client import AdminClient, Node, Silence
from kcore.client.broker_process import BrokerProcess
from kcore.common.time import MockTime
from kcore.common.topic_partition import TopicPartition
from kcore.errors import NotController
from kcore.protocol.messages import create_topics as ct
from kcore.protocol.messages import elect_leaders as el
from kcore.protocol.messages import metadata as m
from tests.waiting import wait_until

ADDRESSES = {0: ("127.0.0.1", 9090), 1: ("127.0.0.1", 9091)}


class Brokers:
    """Broker 0 is the bootstrap.  alive: which can be reached; controller: whom the metadata names."""

    def __init__(self, monkeypatch):
        self.alive, self.controller, self.created_at = {0, 1}, 0, []
        self.refused = 0
        self.error_codes = [0]
        self.on_refused = lambda: None
        monkeypatch.setattr(AdminClient, "_send", lambda client, *words: self.answer(*words[:3]))

    def answer(self, address, request, response_class):
        number = address[1] - 9090
        if number not in self.alive:
            self.refused += 1
            self.on_refused()
            raise ConnectionRefusedError(111, "Connection refused")
        if response_class is m.MetadataResponse:
            brokers = [
                m.MetadataResponseBroker(node_id=n, host=h, port=p, rack=None) for n, (h, p) in ADDRESSES.items()
            ]
            return m.MetadataResponse(brokers=brokers, cluster_id="c", controller_id=self.controller, topics=[])
        self.created_at.append(number)
        return ct.CreateTopicsResponse(
            topics=[
                ct.CreatableTopicResult(name="t", error_code=code, num_partitions=1, replication_factor=1)
                for code in self.error_codes
            ]
        )


def test_a_request_goes_to_the_next_controller_when_the_first_one_and_the_bootstrap_cannot_be_reached(monkeypatch):
    brokers = Brokers(monkeypatch)
    client = AdminClient([ADDRESSES[0]], time=MockTime(), timeout_ms=15_000)
    client.describe_cluster(())
    brokers.alive = {1}

    def elect():  # the metadata of broker 1 names the dead controller for a while
        if brokers.refused == 6:
            brokers.controller = 1

    brokers.on_refused = elect
    assert client.create_topic("t") == (1, 1)
    assert brokers.created_at == [1]


def test_a_controller_that_stays_unreachable_ends_the_request_after_the_timeout(monkeypatch):
    brokers, clock = Brokers(monkeypatch), MockTime()
    brokers.alive = {0}
    brokers.controller = 1
    start_ms = clock.hi_res_clock_ms()
    with pytest.raises(ConnectionRefusedError):
        AdminClient([ADDRESSES[0]], time=clock, timeout_ms=15_000).create_topic("t")
    assert clock.hi_res_clock_ms() - start_ms >= 14_000


def test_a_bootstrap_that_never_answers_ends_the_request_at_once(monkeypatch):
    brokers = Brokers(monkeypatch)
    brokers.alive = set()
    with pytest.raises(ConnectionRefusedError):
        AdminClient([ADDRESSES[0]], time=MockTime()).create_topic("t")
    assert brokers.refused == 1


def test_a_cluster_that_elects_no_controller_is_asked_until_the_timeout_and_then_named_as_it_is(
    monkeypatch,
):
    brokers, clock = Brokers(monkeypatch), MockTime()
    brokers.error_codes = [NotController.code]
    with pytest.raises(NotController) as raised:
        AdminClient([ADDRESSES[1]], time=clock, timeout_ms=15_000).create_topic("t")
    for part in ("127.0.0.1:9090 (broker 0)", "within 15 s", "ZooKeeper, or the SQLite file that they share"):
        assert part in str(raised.value)
    assert len(brokers.created_at) > 10


def test_an_election_without_a_controller_ends_as_other_requests_do_and_with_what_the_last_broker_says(monkeypatch):
    """NotController stands with each partition; that was reported for each, without a reason."""
    brokers, asked = Brokers(monkeypatch), []
    answer = brokers.answer

    def elect(address, request, response_class):
        if response_class is not el.ElectLeadersResponse:
            return answer(address, request, response_class)
        asked.append(address)
        results = [
            el.PartitionResult(partition_id=n, error_code=NotController.code, error_message="its store is away")
            for n in range(2)
        ]
        return el.ElectLeadersResponse(
            replica_election_results=[el.ReplicaElectionResult(topic="t", partition_result=results)]
        )

    brokers.answer = elect
    with pytest.raises(NotController) as raised:
        AdminClient([ADDRESSES[0]], time=MockTime(), timeout_ms=15_000).elect_leaders(
            [TopicPartition("t", 0), TopicPartition("t", 1)]
        )
    for part in ("no broker is the controller", "(broker 0)", "it says: its store is away", "Can the brokers reach"):
        assert part in str(raised.value)
    assert len(asked) > 10


class SilentSender:
    """A BlockingSender whose broker does not answer in the time that the request has."""

    timeouts_ms = []

    def __init__(self, host, port, client_id, *, request_timeout_ms, time):
        self.request_timeout_ms = request_timeout_ms

    def api_versions(self):
        self.timeouts_ms.append(self.request_timeout_ms)
        raise TimeoutError

    def close(self):
        pass


@pytest.mark.parametrize("count", [1, 3])
def test_a_call_ends_after_its_timeout_however_many_brokers_do_not_answer(monkeypatch, count):
    monkeypatch.setattr(admin_client, "BlockingSender", SilentSender)
    monkeypatch.setattr(SilentSender, "timeouts_ms", [])
    addresses = [("127.0.0.1", 9092 + n) for n in range(count)]
    with pytest.raises(TimeoutError, match=r"127\.0\.0\.1:9092: no answer \(timeout 30 s\)"):
        AdminClient(addresses, time=MockTime(), timeout_ms=30_000).describe_cluster(())
    assert SilentSender.timeouts_ms == [30_000] * count


def test_a_broker_is_asked_to_answer_before_the_call_ends(monkeypatch):
    brokers, asked = Brokers(monkeypatch), []
    monkeypatch.setattr(
        AdminClient, "_send", lambda client, *words: (asked.append(words[1]), brokers.answer(*words[:3]))[1]
    )
    for timeout_ms, expected in ((30_000, 29_000), (1000, 750)):
        AdminClient([ADDRESSES[0]], time=MockTime(), timeout_ms=timeout_ms).create_topic("t")
        assert asked[-1].timeout_ms == expected


def test_a_broker_that_does_not_answer_leaves_time_for_the_next_one():
    # The system takes the connection, and nobody answers.
    with kcore.Broker() as broker, socket.create_server(("127.0.0.1", 0)) as silent:
        addresses = [silent.getsockname(), ("127.0.0.1", broker.port)]
        with AdminClient(addresses, timeout_ms=8000) as admin:
            assert list(admin.describe_cluster(()).brokers) == [broker.broker_id]


def test_what_another_client_has_found_silent_is_asked_last_and_not_named_again():
    named = []
    with kcore.Broker() as broker, socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        silent = {listener.getsockname(): Silence("no answer within 1.5 s", False)}
        addresses = [*silent, ("127.0.0.1", broker.port)]
        with AdminClient(addresses, silent=silent, on_silence=lambda *silence: named.append(silence)) as admin:
            assert list(admin.describe_cluster(()).brokers) == [broker.broker_id]
            assert admin.silent == silent and not named
        with pytest.raises(BlockingIOError):  # nobody has connected
            listener.accept()


@pytest.mark.parametrize("what", ["stands still", "runs again", "another process"])
def test_a_broker_that_stands_still_is_waited_for_at_one_of_its_addresses(monkeypatch, what):
    """localhost as the user named it, and 127.0.0.1 as it advertises itself."""
    pids = {"localhost": 4711, "127.0.0.1": 4712 if what == "another process" else 4711}
    monkeypatch.setattr(admin_client, "process_of_address", lambda host, port: BrokerProcess(pids[host], ()))
    reason = None if what == "runs again" else "it stands still"
    monkeypatch.setattr(BrokerProcess, "stopped_reason", lambda process: reason)
    asked = []
    monkeypatch.setattr(admin_client.BlockingSender, "api_versions", lambda sender: asked.append(sender.host))
    silence = Silence("its process 4711 stands still", True)
    with AdminClient([("localhost", 9090)], time=MockTime()) as client:
        client._silent["localhost", 9090] = silence
        silent = client.silent_brokers([Node(0, "127.0.0.1", 9090, None)])
    assert (silent, asked) == (({0: silence}, []) if what == "stands still" else ({}, ["127.0.0.1"]))


def test_a_connection_that_breaks_after_a_while_says_what_its_process_had_waited_for(monkeypatch):
    """The process may have ended since."""
    monkeypatch.setattr(admin_client, "_DOUBT_S", 0)
    waits, reason = BrokerProcess(4711, ()), "its process 4711 runs, but its store is locked"
    monkeypatch.setattr(BrokerProcess, "silence_reason", lambda process: reason)
    monkeypatch.setattr(AdminClient, "_silence_of", lambda client, address: None)
    monkeypatch.setattr(admin_client, "process_of_address", lambda *address: waits)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = listener.getsockname()
        with AdminClient([address]) as client, ThreadPoolExecutor(1) as executor:
            answer = executor.submit(client.describe_cluster)
            connection, _ = listener.accept()
            wait_until(lambda: client._doubts)
            connection.close()
            with pytest.raises(OSError, match=f"; before that {reason}$"):
                answer.result(60)


@pytest.mark.parametrize(("stopped", "timeout_ms"), [("it stands still", 300), (None, 1500)])
def test_a_broker_in_doubt_has_less_time_to_answer_where_its_process_is_stopped(monkeypatch, stopped, timeout_ms):
    monkeypatch.setattr(admin_client, "process_of_address", lambda *address: BrokerProcess(4711, ()))
    monkeypatch.setattr(BrokerProcess, "stopped_reason", lambda process: stopped)
    with socket.create_server(("127.0.0.1", 0)) as listener, AdminClient([listener.getsockname()]) as client:
        silence = client._silence_in_doubt(listener.getsockname())
    assert silence.reason.startswith(f"no answer within {timeout_ms / 1000:g} s")
    assert silence.stands_still is (stopped is not None)
