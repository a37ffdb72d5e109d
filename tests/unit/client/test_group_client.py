"""GroupClient against brokers that are scripted: whose coordinator moves, loads, or is old."""

import threading

import pytest

from kcore import errors
from kcore.client import admin_client
from kcore.client import group_client as group_client_module
from kcore.client.admin_client import RETRY_MS, AdminClient, Silence
from kcore.client.broker_process import BrokerProcess
from kcore.client.group_client import GroupClient
from kcore.common.time import MockTime
from kcore.common.topic_partition import TopicPartition
from kcore.protocol.messages import consumer_group_describe as cd
from kcore.protocol.messages import delete_groups as dg
from kcore.protocol.messages import describe_groups as de
from kcore.protocol.messages import find_coordinator as fc
from kcore.protocol.messages import list_groups as lg
from kcore.protocol.messages import list_offsets as lo
from kcore.protocol.messages import metadata as m
from kcore.protocol.messages import offset_fetch as of

BOOTSTRAP = ("127.0.0.1", 9090)


class Brokers:
    """found: what FindCoordinator answers, one after the other, the last one from then on: a broker id or an error
    class.  answers: response class -> answers in the same way, or exceptions to raise.  asked: (broker, response class,
    highest version).  silences: broker id -> why it does not answer."""

    def __init__(self, monkeypatch, found, **answers):
        self.found, self.answers, self.asked = list(found), {name: list(a) for name, a in answers.items()}, []
        self.silences = {}
        monkeypatch.setattr(AdminClient, "_send", lambda client, *words: self.answer(*words[:4]))
        monkeypatch.setattr(
            AdminClient, "_silence_of", lambda client, address: self.silences.get(address[1] - BOOTSTRAP[1])
        )

    def answer(self, address, request, response_class, max_version=None):
        self.asked.append((address[1] - 9090, response_class, max_version))
        if response_class is m.MetadataResponse:
            return self._metadata({topic.name for topic in request.topics})
        if response_class is fc.FindCoordinatorResponse:
            found = self._next(self.found)
            if isinstance(found, int):
                return fc.FindCoordinatorResponse(node_id=found, host="127.0.0.1", port=9090 + found)
            return fc.FindCoordinatorResponse(error_code=found.code, node_id=-1, port=-1)
        answer = self._next(self.answers[response_class.__name__.removesuffix("Response")])
        if isinstance(answer, Exception):
            raise answer
        return answer

    def _metadata(self, names):
        brokers = [m.MetadataResponseBroker(node_id=n, host="127.0.0.1", port=9090 + n, rack=None) for n in range(3)]
        partitions = [m.MetadataResponsePartition(partition_index=n, leader_id=n if n < 3 else -1) for n in range(4)]
        topics = [
            m.MetadataResponseTopic(name="t", partitions=partitions),
            m.MetadataResponseTopic(name="secret", error_code=errors.TopicAuthorizationFailed.code),
        ]
        named = [topic for topic in topics if topic.name in names]
        return m.MetadataResponse(brokers=brokers, cluster_id="c", controller_id=0, topics=named)

    @staticmethod
    def _next(answers):
        return answers.pop(0) if len(answers) > 1 else answers[0]


def client():
    return GroupClient([BOOTSTRAP], time=MockTime(), timeout_ms=10_000)


def deleted(error=None):
    code = 0 if error is None else error.code
    return dg.DeleteGroupsResponse(results=[dg.DeletableGroupResult(group_id="g", error_code=code)])


def test_a_group_whose_coordinator_moves_is_asked_of_the_next_one(monkeypatch):
    brokers = Brokers(
        monkeypatch,
        [errors.CoordinatorNotAvailable, 1, 1, 2],
        DeleteGroups=[ConnectionRefusedError(111, "refused"), deleted(errors.NotCoordinator), deleted()],
    )
    client().delete_group("g")
    assert [number for number, kind, _ in brokers.asked if kind is dg.DeleteGroupsResponse] == [1, 1, 2]
    # Newer versions have several keys.
    assert {version for _, kind, version in brokers.asked if kind is fc.FindCoordinatorResponse} == {3}


@pytest.mark.parametrize(
    ("found", "answer", "error"),
    [
        (errors.CoordinatorNotAvailable, deleted(), errors.CoordinatorNotAvailable),
        (1, deleted(errors.CoordinatorLoadInProgress), errors.CoordinatorLoadInProgress),
        (1, ConnectionRefusedError(111, "refused"), ConnectionRefusedError),
    ],
)
def test_a_coordinator_that_does_not_come_is_an_error_at_the_deadline(monkeypatch, found, answer, error):
    Brokers(monkeypatch, [found], DeleteGroups=[answer])
    group_client = client()
    start_ms = group_client._time.hi_res_clock_ms()
    with pytest.raises(error) as raised:
        group_client.delete_group("g")
    assert ("offsets.topic.replication.factor" in str(raised.value)) == (error is errors.CoordinatorNotAvailable)
    assert 9_000 <= group_client._time.hi_res_clock_ms() - start_ms <= 10_000


@pytest.mark.parametrize(
    ("found", "asked", "who"),
    [
        (1, 9091, "127.0.0.1:9091 does not answer as a coordinator now"),
        (errors.CoordinatorNotAvailable, 9090, "no broker coordinates it now"),
    ],
)
def test_while_the_store_is_locked_no_coordinator_is_waited_for(monkeypatch, found, asked, who):
    addresses = []

    def store_lock_at(*address):
        addresses.append(address)
        return "the store is locked" if len(addresses) == 2 else None

    Brokers(monkeypatch, [found], DeleteGroups=[deleted(errors.NotCoordinator)])
    monkeypatch.setattr(group_client_module, "store_lock_at", store_lock_at)
    group_client = GroupClient([BOOTSTRAP], time=MockTime(), timeout_ms=10_000, ends_where_locked=True)
    start_ms = group_client._time.hi_res_clock_ms()
    with pytest.raises(errors.CoordinatorNotAvailable, match=f"^group 'g': {who}: the store is locked$"):
        group_client.delete_group("g")
    assert addresses == [("127.0.0.1", asked)] * 2  # it was not locked at first
    assert 2_000 <= group_client._time.hi_res_clock_ms() - start_ms <= 3_000


def test_an_error_that_does_not_pass_is_raised_at_once(monkeypatch):
    brokers = Brokers(monkeypatch, [1], DeleteGroups=[deleted(errors.GroupAuthorizationFailed)])
    with pytest.raises(errors.GroupAuthorizationFailed, match="group 'g': GroupAuthorizationFailed"):
        client().delete_group("g")
    assert len(brokers.asked) == 2


@pytest.mark.parametrize(
    "group", [de.DescribedGroup(group_id="g", group_state="Dead"), de.DescribedGroup(error_code=69, group_id="g")]
)
def test_a_group_that_old_and_new_brokers_do_not_have_is_not_found(monkeypatch, group):
    for code in (errors.GroupIdNotFound.code, errors.UnsupportedVersion.code):
        of_new_protocol = cd.ConsumerGroupDescribedGroup(group_id="g", error_code=code)
        Brokers(
            monkeypatch,
            [1],
            DescribeGroups=[de.DescribeGroupsResponse(groups=[group])],
            ConsumerGroupDescribe=[cd.ConsumerGroupDescribeResponse(groups=[of_new_protocol])],
        )
        with pytest.raises(errors.GroupIdNotFound, match="there is no group 'g'"):
            client().describe_group("g")


def test_a_group_is_not_found_where_brokers_do_not_know_the_new_protocol(monkeypatch):
    group = de.DescribedGroup(group_id="g", group_state="Dead")
    brokers = Brokers(monkeypatch, [1], DescribeGroups=[de.DescribeGroupsResponse(groups=[group])])
    brokers.answers["ConsumerGroupDescribe"] = [errors.UnsupportedVersion("")]
    with pytest.raises(errors.GroupIdNotFound, match="there is no group 'g'"):
        client().describe_group("g")


@pytest.mark.parametrize("assignment", [b"", b"\0", b"\xff\xff\0\0\0\0", b"\0\0\0\0\0\x01\0\x01"])
def test_an_assignment_that_cannot_be_read_is_not_known(monkeypatch, assignment):
    member = de.DescribedGroupMember(member_id="m", client_id="c", client_host="/h", member_assignment=assignment)
    group = de.DescribedGroup(group_id="g", group_state="Stable", protocol_type="consumer", members=[member])
    Brokers(monkeypatch, [1], DescribeGroups=[de.DescribeGroupsResponse(groups=[group])])
    assert client().describe_group("g").members[0].assignment is None


def test_offsets_that_were_not_committed_or_cannot_be_had_are_left_out(monkeypatch):
    partitions = [
        of.OffsetFetchResponsePartition(partition_index=n, committed_offset=offset, error_code=code)
        for n, (offset, code) in enumerate([(5, 0), (-1, 0), (7, errors.UnknownTopicOrPartition.code), (0, 0)])
    ]
    topic = of.OffsetFetchResponseTopic(name="t", partitions=partitions)
    brokers = Brokers(monkeypatch, [1], OffsetFetch=[of.OffsetFetchResponse(topics=[topic])])
    assert client().committed_offsets("g") == {TopicPartition("t", 0): 5, TopicPartition("t", 3): 0}
    assert brokers.asked[-1] == (1, of.OffsetFetchResponse, 7)


def test_each_leader_is_asked_for_its_log_ends_and_what_is_unknown_has_its_reason(monkeypatch):
    def ends(number, offset, code=0):
        partition = lo.ListOffsetsPartitionResponse(partition_index=number, offset=offset, error_code=code)
        return lo.ListOffsetsResponse(topics=[lo.ListOffsetsTopicResponse(name="t", partitions=[partition])])

    Brokers(
        monkeypatch,
        [1],
        ListOffsets=[ends(0, 10), ends(1, -1, errors.NotLeaderOrFollower.code), TimeoutError(110, "no answer")],
    )
    partitions = [*(TopicPartition("t", number) for number in range(5)), TopicPartition("secret", 0)]
    found = client().log_end_offsets(partitions)
    assert [found[tp].offset for tp in partitions] == [10, None, None, None, None, None]
    problems = [found[tp].problem or "" for tp in partitions]
    assert problems[0] == "" and "broker 1: NotLeaderOrFollower" in problems[1] and "broker 2: " in problems[2]
    assert problems[3:5] == ["it has no leader", "there is no such partition"]
    assert "TopicAuthorizationFailed" in problems[5]


def silence_broker_0(monkeypatch, brokers):
    """It answers Metadata; another request of it waits until its deadline."""

    def send(group_client, address, request, response_class, *rest):
        left_ms = group_client._left_ms(group_client._deadline_ms)
        if response_class is not m.MetadataResponse and address[1] == 9090:
            group_client._time.sleep(left_ms)
            raise TimeoutError(110, "no answer")
        return brokers.answer(address, request, response_class)

    monkeypatch.setattr(AdminClient, "_send", send)


def test_a_leader_that_does_not_answer_leaves_the_next_ones_their_share_of_the_time(monkeypatch):
    def ends(number):
        partition = lo.ListOffsetsPartitionResponse(partition_index=number, offset=10)
        return lo.ListOffsetsResponse(topics=[lo.ListOffsetsTopicResponse(name="t", partitions=[partition])])

    brokers = Brokers(monkeypatch, [1], ListOffsets=[ends(1), ends(2)])

    silence_broker_0(monkeypatch, brokers)
    found = client().log_end_offsets([TopicPartition("t", number) for number in range(3)])
    assert [end.offset for end in found.values()] == [None, 10, 10]


def test_a_broker_that_cannot_be_reached_is_asked_once_for_its_groups_and_costs_no_time(monkeypatch):
    """It was killed just now: unlike a group's coordinator, no other broker takes its place in the list."""
    listed = lg.ListGroupsResponse(groups=[lg.ListedGroup(group_id="a")])
    loading = lg.ListGroupsResponse(error_code=errors.CoordinatorLoadInProgress.code)
    answers = [ConnectionRefusedError(111, "refused"), loading, listed, listed]
    brokers = Brokers(monkeypatch, [1], ListGroups=answers)
    time = MockTime()
    begin_ms = time.hi_res_clock_ms()
    groups, failures = GroupClient([BOOTSTRAP], time=time, timeout_ms=30_000).list_groups()
    assert [number for number, kind, _ in brokers.asked if kind is lg.ListGroupsResponse] == [0, 1, 1, 2]
    assert ([group.group_id for group in groups], list(failures)) == (["a"], [0])
    assert time.hi_res_clock_ms() - begin_ms == RETRY_MS  # of the broker that was loading


def test_a_broker_that_does_not_list_its_groups_leaves_the_next_ones_their_share_of_the_time(monkeypatch):
    listed = [lg.ListGroupsResponse(groups=[lg.ListedGroup(group_id=name)]) for name in "ab"]
    silence_broker_0(monkeypatch, Brokers(monkeypatch, [1], ListGroups=listed))
    groups, failures = client().list_groups()
    assert ([group.group_id for group in groups], list(failures)) == (["a", "b"], [0])


def test_brokers_that_do_not_list_their_groups_are_named_with_the_reason(monkeypatch):
    listed = lg.ListGroupsResponse(groups=[lg.ListedGroup(group_id="b"), lg.ListedGroup(group_id="a")])
    failed = lg.ListGroupsResponse(error_code=errors.ClusterAuthorizationFailed.code)
    Brokers(monkeypatch, [1], ListGroups=[listed, failed, ConnectionRefusedError(111, "refused")])
    groups, failures = client().list_groups()
    assert [(group.group_id, group.state, group.coordinator) for group in groups] == [("a", None, 0), ("b", None, 0)]
    assert list(failures) == [1, 2]
    assert isinstance(failures[1], errors.ClusterAuthorizationFailed) and isinstance(failures[2], OSError)


STANDS_STILL = Silence("its process 4711 stands still", True)


def ask_all_at_once(monkeypatch, silences, count):
    """Broker id -> why it does not answer.  Each one waits until `count` brokers are asked."""
    all_are_asked = threading.Barrier(count, timeout=60)

    def silence_of(group_client, address):
        all_are_asked.wait()
        return silences.get(address[1] - BOOTSTRAP[1])

    monkeypatch.setattr(AdminClient, "_silence_of", silence_of)


def test_silent_brokers_are_waited_for_at_the_same_time_and_not_asked_for_their_groups(monkeypatch):
    brokers = Brokers(monkeypatch, [1], ListGroups=[lg.ListGroupsResponse(groups=[lg.ListedGroup(group_id="a")])])
    ask_all_at_once(monkeypatch, {0: STANDS_STILL, 2: Silence("Connection refused", False)}, 3)
    named = []  # in vain: the result names them
    group_client = GroupClient([BOOTSTRAP], time=MockTime(), on_silence=lambda *silence: named.append(silence))
    for _ in range(2):  # the second time it is known; only who answered is looked at again
        groups, failures = group_client.list_groups()
        assert ([group.group_id for group in groups], list(failures)) == (["a"], [0, 2])
        assert str(failures[0]) == "127.0.0.1:9090 does not answer: its process 4711 stands still"
        assert str(failures[2]) == "127.0.0.1:9092 does not answer: Connection refused"
        ask_all_at_once(monkeypatch, {}, 1)
    assert [number for number, kind, _ in brokers.asked if kind is lg.ListGroupsResponse] == [1, 1]
    assert named == []


def test_silent_leaders_are_waited_for_at_the_same_time_and_not_asked_for_their_log_ends(monkeypatch):
    partition = lo.ListOffsetsPartitionResponse(partition_index=1, offset=10)
    topic = lo.ListOffsetsTopicResponse(name="t", partitions=[partition])
    brokers = Brokers(monkeypatch, [1], ListOffsets=[lo.ListOffsetsResponse(topics=[topic])])
    ask_all_at_once(monkeypatch, {0: STANDS_STILL, 2: STANDS_STILL}, 3)
    found = client().log_end_offsets([TopicPartition("t", number) for number in range(3)])
    assert {tp.partition: end.offset for tp, end in found.items()} == {0: None, 1: 10, 2: None}
    assert found[TopicPartition("t", 2)].problem == f"broker 2: {STANDS_STILL.reason}"
    assert [number for number, kind, _ in brokers.asked if kind is lo.ListOffsetsResponse] == [1]


def test_a_coordinator_that_stands_still_is_not_waited_for(monkeypatch):
    """Any other one that does not answer may soon be replaced; what is stopped by hand says so at once."""
    brokers = Brokers(monkeypatch, [1], DescribeGroups=[TimeoutError(110, "no answer")])
    group_client = client()
    group_client._silent["127.0.0.1", 9091] = STANDS_STILL
    with pytest.raises(errors.CoordinatorNotAvailable, match=r"group 'g': its coordinator at .*:9091 does not answer"):
        group_client.describe_group("g")
    assert [number for number, kind, _ in brokers.asked if kind is de.DescribeGroupsResponse] == [1]


@pytest.mark.parametrize("still", [True, False])
def test_a_broker_that_stood_still_is_asked_again_only_once_it_runs(monkeypatch, still):
    monkeypatch.setattr(BrokerProcess, "stopped_reason", lambda process: "it stands still" if still else None)
    monkeypatch.setattr(admin_client, "process_of_address", lambda host, port: BrokerProcess(4711, ()))
    asked = []

    def api_versions(sender):
        asked.append(sender.port)
        raise ConnectionResetError(104, "reset")

    monkeypatch.setattr(admin_client.BlockingSender, "api_versions", api_versions)
    group_client = client()
    group_client._silent[BOOTSTRAP] = STANDS_STILL
    with pytest.raises(OSError, match="stands still" if still else "reset"):
        group_client.describe_cluster(())
    assert asked == ([] if still else [BOOTSTRAP[1]])
