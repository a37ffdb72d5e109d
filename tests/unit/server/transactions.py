"""A transactional producer that sends exactly what a test needs, over one connection."""

from kcore.coordinator.transaction.transaction_state import Producer
from kcore.protocol.messages import add_offsets_to_txn as ao
from kcore.protocol.messages import add_partitions_to_txn as ap
from kcore.protocol.messages import end_txn as et
from kcore.protocol.messages import init_producer_id as ip
from kcore.protocol.messages import produce as p
from kcore.protocol.messages import txn_offset_commit as toc
from kcore.protocol.messages.api_versions import ApiVersionsRequest
from kcore.protocol.messages.find_coordinator import FindCoordinatorRequest
from kcore.record.record_batch_builder import RecordBatchBuilder
from tests.unit.server.client import Client
from tests.waiting import wait_until

NO_PRODUCER = Producer(-1, -1)
SETTINGS = {"transaction.state.log.num.partitions": 2, "offsets.topic.num.partitions": 2}


def transactional_batch(producer, *values, base_sequence=0):
    builder = RecordBatchBuilder(
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        base_sequence=base_sequence,
        is_transactional=True,
    )
    for value in values:
        builder.append(value)
    return builder.build()


class TransactionalClient:
    """Each method sends one request and returns its error code, init() the whole answer.

    offset: of the first record of the last produce(), -1 after an error.
    """

    def __init__(self, client, transactional_id="x", *, version=3):
        self.client = client
        self.transactional_id = transactional_id
        self.version = version
        self.producer = None
        self.offset = -1

    def find(self):
        request = FindCoordinatorRequest(key=self.transactional_id, key_type=1)
        wait_until(lambda: self.client.ask(request, 3).error_code == 0)
        return self

    def init(self, expected=NO_PRODUCER, *, timeout_ms=60_000, version=4):
        request = ip.InitProducerIdRequest(
            transactional_id=self.transactional_id, transaction_timeout_ms=timeout_ms, producer_id=expected[0]
        )
        request.producer_epoch = expected[1]
        answer = self.client.ask(request, version)
        if not answer.error_code:
            self.producer = Producer(answer.producer_id, answer.producer_epoch)
        return answer

    def add(self, partitions, producer=None):
        """{(topic, partition): error code}"""
        producer = producer or self.producer
        by_topic = {}
        for topic, number in partitions:
            by_topic.setdefault(topic, []).append(number)
        request = ap.AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.transactional_id,
            v3_and_below_producer_id=producer.producer_id,
            v3_and_below_producer_epoch=producer.epoch,
            v3_and_below_topics=[ap.AddPartitionsToTxnTopic(name=n, partitions=ps) for n, ps in by_topic.items()],
        )
        answer = self.client.ask(request, min(self.version, 3))
        return {
            (topic.name, result.partition_index): result.partition_error_code
            for topic in answer.results_by_topic_v3_and_below
            for result in topic.results_by_partition
        }

    def add_offsets(self, group_id, producer=None):
        producer = producer or self.producer
        request = ao.AddOffsetsToTxnRequest(transactional_id=self.transactional_id, group_id=group_id)
        request.producer_id, request.producer_epoch = producer
        return self.client.ask(request, self.version).error_code

    def commit_offset(self, group_id, topic, offset, **fields):
        partition = toc.TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=offset)
        topics = [toc.TxnOffsetCommitRequestTopic(name=topic, partitions=[partition])]
        request = toc.TxnOffsetCommitRequest(transactional_id=self.transactional_id, group_id=group_id, topics=topics)
        request.producer_id, request.producer_epoch = self.producer
        for name, value in fields.items():
            setattr(request, name, value)
        return self.client.ask(request, self.version).topics[0].partitions[0].error_code

    def produce(self, topic, number, *values, base_sequence=0, producer=None, transactional_id=None, version=7):
        records = transactional_batch(producer or self.producer, *values, base_sequence=base_sequence)
        data = p.TopicProduceData(name=topic, partition_data=[p.PartitionProduceData(index=number, records=records)])
        request = p.ProduceRequest(
            acks=-1, timeout_ms=60_000, topic_data=[data], transactional_id=transactional_id or self.transactional_id
        )
        (answer,) = self.client.ask(request, version).responses[0].partition_responses
        self.offset = answer.base_offset
        return answer.error_code

    def end_2(self, is_commit, producer=None):
        """At transaction version 2: the whole answer, and the producer goes on as it says."""
        request = et.EndTxnRequest(transactional_id=self.transactional_id, committed=is_commit)
        request.producer_id, request.producer_epoch = producer or self.producer
        answer = self.client.ask(request, 5)
        if not answer.error_code:
            self.producer = Producer(answer.producer_id, answer.producer_epoch)
        return answer

    def end(self, is_commit, producer=None):
        producer = producer or self.producer
        request = et.EndTxnRequest(transactional_id=self.transactional_id, committed=is_commit)
        request.producer_id, request.producer_epoch = producer
        return self.client.ask(request, self.version).error_code


def await_markers(broker):
    """A producer is answered when the end of its transaction is decided; its markers follow."""
    wait_until(lambda: not broker.running.services.transaction_coordinator.completions)


def committed(broker, topic, number=0):
    """The values that a consumer with read_committed gets once no transaction is ending."""
    await_markers(broker)
    return [record.value for record in broker.log(topic, number).records(isolation="read_committed")]


def announced(broker):
    """Of transaction.version: (highest supported level, level in use, epoch of the features)."""
    with Client(broker) as client:
        answer = client.ask(ApiVersionsRequest(client_software_name="test", client_software_version="1"), 4)
    supported = {f.name: f.max_version for f in answer.supported_features}
    finalized = {f.name: f.max_version_level for f in answer.finalized_features}
    return (
        supported.get("transaction.version", 0),
        finalized.get("transaction.version", 0),
        answer.finalized_features_epoch,
    )
