"""A controller whose requests the test chooses: the three requests, over real connections."""

from kcore.common.topic_partition import ZERO_UUID
from kcore.protocol.messages import leader_and_isr as li
from kcore.protocol.messages import stop_replica as sr
from kcore.protocol.messages import update_metadata as um
from tests.unit.server.client import Client

#: The id that the brokers of these tests take the controller to have.
CONTROLLER_ID = 9


class ControllerClient:
    """Not thread-safe.  broker_epoch: of its requests, -1 for none; newest versions unless the test gives others."""

    def __init__(self, broker, controller_epoch=1, broker_epoch=-1):
        self.broker = broker
        self.controller_epoch = controller_epoch
        self.broker_epoch = broker_epoch
        self.client = Client(broker)

    def __enter__(self):
        return self

    def __exit__(self, *exc_info):
        self.client.sock.close()

    def _header(self):
        return {
            "controller_id": CONTROLLER_ID,
            "controller_epoch": self.controller_epoch,
            "broker_epoch": self.broker_epoch,
        }

    def state(self, partition=0, leader=1, leader_epoch=0, isr=(1,), replicas=(1,), **fields):
        return li.LeaderAndIsrPartitionState(
            partition_index=partition,
            controller_epoch=self.controller_epoch,
            leader=leader,
            leader_epoch=leader_epoch,
            isr=list(isr),
            replicas=list(replicas),
            **fields,
        )

    def leader_and_isr_request(self, topics, version=7, topic_ids=None):
        """topics: name -> partition states"""
        topic_ids = topic_ids or {}
        if version < 2:
            states = [state for name, states in topics.items() for state in states]
            for name, named in topics.items():
                for state in named:
                    state.topic_name = name
            return li.LeaderAndIsrRequest(**self._header(), ungrouped_partition_states=states)
        topic_states = [
            li.LeaderAndIsrTopicState(topic_name=name, topic_id=topic_ids.get(name, ZERO_UUID), partition_states=states)
            for name, states in topics.items()
        ]
        return li.LeaderAndIsrRequest(**self._header(), topic_states=topic_states)

    def leader_and_isr(self, topics, version=7, topic_ids=None):
        return self.client.ask(self.leader_and_isr_request(topics, version, topic_ids), version)

    def stop_replica(self, topic, partition=0, leader_epoch=0, delete=False, version=4):
        request = sr.StopReplicaRequest(**self._header())
        if version == 0:
            request.delete_partitions = delete
            request.ungrouped_partitions = [sr.StopReplicaPartitionV0(topic_name=topic, partition_index=partition)]
        elif version < 3:
            request.delete_partitions = delete
            request.topics = [sr.StopReplicaTopicV1(name=topic, partition_indexes=[partition])]
        else:
            state = sr.StopReplicaPartitionState(
                partition_index=partition, leader_epoch=leader_epoch, delete_partition=delete
            )
            request.topic_states = [sr.StopReplicaTopicState(topic_name=topic, partition_states=[state])]
        return self.client.ask(request, version)

    def update_metadata(self, topics=None, brokers=None, version=8, topic_ids=None):
        """topics: name -> {partition: fields of its state}; brokers: id -> {listener: (host, port)}, by default the
        broker alone."""
        brokers = (
            {self.broker.broker_id: {"PLAINTEXT": ("127.0.0.1", self.broker.port)}} if brokers is None else brokers
        )
        topic_ids = topic_ids or {}
        request = um.UpdateMetadataRequest(**self._header())
        for broker_id, listeners in brokers.items():
            endpoints = [
                um.UpdateMetadataEndpoint(listener=name if version >= 3 else "", host=host, port=port)
                for name, (host, port) in listeners.items()
            ]
            live = um.UpdateMetadataBroker(id=broker_id, endpoints=endpoints if version else [])
            if version == 0:
                live.v0_host, live.v0_port = listeners["PLAINTEXT"]
            request.live_brokers.append(live)
        for name, partitions in (topics or {}).items():
            states = [
                um.UpdateMetadataPartitionState(
                    topic_name=name if version < 5 else "",
                    partition_index=number,
                    controller_epoch=self.controller_epoch,
                    **{"leader": 1, "leader_epoch": 0, "isr": [1], "replicas": [1], **fields},
                )
                for number, fields in partitions.items()
            ]
            if version < 5:
                request.ungrouped_partition_states += states
            else:
                topic_id = topic_ids.get(name, ZERO_UUID) if version >= 7 else ZERO_UUID
                request.topic_states.append(
                    um.UpdateMetadataTopicState(topic_name=name, topic_id=topic_id, partition_states=states)
                )
        return self.client.ask(request, version)


def codes(response):
    """(topic or topic id, partition) -> error code, of a LeaderAndIsr or StopReplica response."""
    listed = {(error.topic_name, error.partition_index): error.error_code for error in response.partition_errors}
    for topic in getattr(response, "topics", ()):
        for error in topic.partition_errors:
            listed[topic.topic_id, error.partition_index] = error.error_code
    return listed
