"""Real brokers in one process. The test sends them the LeaderAndIsr requests that a controller would send."""

from __future__ import annotations

import contextlib
import queue
import socket
import threading
from pathlib import Path
from uuid import UUID

import kcore
from kcore.common.topic_partition import TopicPartition
from kcore.log.log_offset_metadata import AppendOrigin
from kcore.metadata import znodes
from kcore.metadata.memory_store import MemoryStore, MemoryTree
from kcore.metadata.metadata_cache import BrokerInfo, Endpoint, PartitionInfo
from kcore.replica.partition_state import LeaderAndIsrUpdate
from tests.batches import batch
from tests.waiting import wait_until

DEADLINE_S = 60
TOPIC_ID = UUID(int=77)
T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


class Replicas:
    """Brokers 0, 1, ... over one store; lead() makes one of them the leader of a partition."""

    def __init__(self, directory: Path, brokers: int = 2, **config):
        self.directory = directory
        self.tree = MemoryTree()
        self.config = {"replica_fetch_backoff_ms": 20, "replica_fetch_wait_max_ms": 100, **config}
        self.brokers: dict[int, kcore.Broker] = {}
        self.ports: dict[int, int] = {}
        #: broker -> the address that the others get for it, if it is not the one at which it listens.
        self.advertised: dict[int, tuple[str, int]] = {}
        self.states: dict[TopicPartition, tuple[int, int, tuple[int, ...]]] = {}
        self.epoch = 0
        self.members = list(range(brokers))
        for broker_id in self.members:
            self.start(broker_id)
        self._create_nodes()

    def _create_nodes(self):
        store = MemoryStore(self.tree)
        for tp in (T0, T1):
            store.ensure_path(znodes.partition_state(tp.topic, tp.partition))
        topic = znodes.TopicZNode({tp.partition: self.members for tp in (T0, T1)}, TOPIC_ID)
        store.set(znodes.topic("t"), topic.encode())

    def start(self, broker_id: int) -> kcore.Broker:
        broker = kcore.Broker(
            data_dir=self.directory / str(broker_id),
            port=self.ports.get(broker_id, 0),
            store=MemoryStore(self.tree),
            broker_id=broker_id,
            offsets_topic_num_partitions=1,
            # The records of batch() are old: they would be deleted once the broker has run for 30 s.
            log_retention_ms=-1,
            **self.config,
        )
        broker.start()
        self.brokers[broker_id] = broker
        self.ports[broker_id] = broker.port
        return broker

    def stop(self, *broker_ids: int) -> None:
        for broker_id in broker_ids or list(self.brokers):
            self.brokers.pop(broker_id).stop()

    def update_metadata(self) -> None:
        infos = [
            BrokerInfo(n, {"PLAINTEXT": Endpoint(*self.advertised.get(n, ("127.0.0.1", self.ports[n])))})
            for n in self.brokers
        ]
        partitions = {
            tp.partition: PartitionInfo(leader, epoch, tuple(self.members), isr)
            for tp, (leader, epoch, isr) in self.states.items()
        }
        for broker in self.brokers.values():
            broker.cluster_member.orders.update_metadata(
                0, 1, infos, {"t": (TOPIC_ID, partitions)} if partitions else {}
            )

    def lead(self, leader: int, *tps: TopicPartition, isr=None, to=None) -> None:
        """A new leader epoch for the partitions; `to`: the brokers that hear of it, all if None."""
        self.epoch += 1
        isr = tuple(self.members) if isr is None else tuple(isr)
        for tp in tps or (T0,):
            self.states[tp] = (leader, self.epoch, isr)
        store = MemoryStore(self.tree)
        self.update_metadata()
        for tp in tps or (T0,):
            path = znodes.partition_state(tp.topic, tp.partition)
            node = znodes.PartitionStateZNode(leader, self.epoch, list(isr), 1)
            version = store.set(path, node.encode())
            update = LeaderAndIsrUpdate(tp, leader, self.epoch, isr, self.members, version, TOPIC_ID)
            for broker_id, broker in self.brokers.items():
                if to is None or broker_id in to:
                    assert broker.cluster_member.orders.become_leader_or_follower([update], 1) == {tp: None}

    def log(self, broker_id: int, tp: TopicPartition = T0):
        return self.brokers[broker_id].replica_manager.get_partition(tp).log

    def produce(self, broker_id: int, *values, tp=T0, acks=1, timeout_ms=DEADLINE_S * 1000, **attributes):
        """A queue that gets the status of the append, at once for acks=1."""
        answers = queue.SimpleQueue()
        self.brokers[broker_id].replica_manager.append_records(
            timeout_ms, acks, False, AppendOrigin.CLIENT, {tp: batch(*values, **attributes)},
            lambda statuses: answers.put(statuses[tp]),
        )  # fmt: skip
        return answers

    def ends(self, tp=T0):
        return [self.log(n, tp).log_end_offset for n in sorted(self.brokers)]

    def bytes(self, broker_id: int, tp=T0) -> bytes:
        directory = self.directory / str(broker_id) / f"{tp.topic}-{tp.partition}"
        return b"".join(path.read_bytes() for path in sorted(directory.glob("*.log")))

    def wait_until_equal(self, *tps: TopicPartition) -> None:
        """Until all logs have one end, and that is the high watermark of each; then their files are compared."""
        for tp in tps or (T0,):
            logs = [self.log(n, tp) for n in sorted(self.brokers)]
            wait_until(
                lambda logs=logs: len({log.log_end_offset for log in logs} | {log.high_watermark for log in logs}) == 1,
                lambda logs=logs: f"ends {[(log.log_end_offset, log.high_watermark) for log in logs]}",
            )
            first, *others = [self.bytes(n, tp) for n in sorted(self.brokers)]
            assert all(other == first for other in others)

    def thread(self, broker_id: int):
        """The only fetcher of a broker."""
        (thread,) = self.brokers[broker_id].replica_manager.fetchers.threads().values()
        return thread


class Proxy:
    """Forwards connections to a broker.  on_response(bytes) is what goes on to the client; None breaks it off."""

    def __init__(self, host: str, port: int):
        self._target = (host, port)
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.address = self._listening.getsockname()
        self.connections = 0
        self.on_response = lambda data: data
        self._open: list[socket.socket] = []
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listening.accept()
                self.connections += 1
                upstream = socket.create_connection(self._target)
                self._open += [client, upstream]
                for source, target, change in (
                    (client, upstream, lambda data: data),
                    (upstream, client, lambda data: self.on_response(data)),
                ):
                    threading.Thread(target=self._pump, args=(source, target, change), daemon=True).start()

    @staticmethod
    def _pump(source, target, change) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                data = change(data)
                if data is None:
                    break
                target.sendall(data)
        for connection in (source, target):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        for connection in [self._listening, *self._open]:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()
