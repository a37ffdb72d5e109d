"""A cluster of brokers as one sequence of steps, chosen by a seed: what a run does, it does again with that seed."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from kcore.common.time import MockTime
from kcore.common.topic_partition import TopicPartition
from kcore.errors import ApiError
from kcore.log.log_config import LogConfig
from kcore.log.log_offset_metadata import FetchIsolation
from kcore.record.record_batch_builder import RecordBatchBuilder
from kcore.replica.partition_state import LeaderAndIsrUpdate
from tests.sim.controller import CONTROLLER_EPOCH, SimController
from tests.sim.disk import Disk
from tests.sim.history import History
from tests.sim.node import AlterIsr, InFlight, Node
from tests.sim.router import CONTROLLER, Message, Router


@dataclass(frozen=True)
class Settings:
    """What differs between seeds."""

    brokers: int = 3
    partitions: int = 2
    min_insync_replicas: int = 1
    truncates_on_fetch: bool = True
    loss: float = 0.05
    duplication: float = 0.05
    segment_bytes: int = 1000
    unclean: bool = False

    @staticmethod
    def of_seed(random: Random, *, unclean: bool = False) -> Settings:
        return Settings(
            brokers=random.choice([2, 3, 3]),
            min_insync_replicas=random.choice([1, 2]),
            truncates_on_fetch=random.random() < 0.6,
            loss=random.choice([0, 0.05, 0.2]),
            duplication=random.choice([0, 0.1]),
            segment_bytes=random.choice([400, 1000, 100_000]),
            unclean=unclean,
        )


class Cluster:
    """Brokers, a controller, the network between them, and clients.

    With unclean elections committed records may go; then only the end counts: all replicas equal.
    """

    def __init__(self, directory: str, seed: int, *, unclean: bool = False) -> None:
        self.random = Random(seed)
        self.settings = Settings.of_seed(self.random, unclean=unclean)
        self.time = MockTime()
        self.router = Router(self.random, self.time, loss=self.settings.loss, duplication=self.settings.duplication)
        self.history = History()
        self.controller = SimController(self._tell, unclean=unclean)
        self.disks = [Disk(os.path.join(directory, str(broker))) for broker in range(self.settings.brokers)]
        self.nodes: dict[int, Node] = {}
        self.steps = 0
        self.crashes = 0
        self._trace = hashlib.sha256()
        #: The last events, for the message of a failure.
        self.recent: list[str] = []
        self._values = 0
        for broker in range(self.settings.brokers):
            self._start(broker)
        for number in range(self.settings.partitions):
            replicas = [(number + at) % self.settings.brokers for at in range(self.settings.brokers)]
            self.controller.create(TopicPartition("t", number), replicas)

    @property
    def trace_hash(self) -> str:
        """Of everything that has happened so far."""
        return self._trace.hexdigest()

    # -- steps ------------------------------------------------------------------------------------------------------

    def run(self, steps: int) -> None:
        actions: list[tuple[int, Callable[[], str]]] = [
            (400, self._deliver),
            (300, self._poll),
            (150, self._produce),
            (60, self._pass_time),
            (20, self._consume),
            (6, self._elect),
            (4, self._delete_records),
            (3, self._cut_a_link),
            (12, self._mend_a_link),
            (3, self._crash),
            (6, self._restart),
        ]
        weights = [weight for weight, _ in actions]
        for _ in range(steps):
            (action,) = self.random.choices([action for _, action in actions], weights)
            self._note(action.__name__, action())
            if self.steps % 200 == 0:
                self.check()

    def _note(self, action: str, event: str) -> None:
        self.steps += 1
        line = f"{self.steps} {self.time.hi_res_clock_ms():.3f} {action} {event}"
        self._trace.update(line.encode())
        self.recent.append(line)
        if len(self.recent) > 400:
            del self.recent[:200]
        for broker, node in self.nodes.items():
            self.disks[broker].note_flushes(node.log_manager)

    def _any_node(self) -> Node | None:
        return self.random.choice(list(self.nodes.values())) if self.nodes else None

    def _any_partition(self) -> TopicPartition:
        return TopicPartition("t", self.random.randrange(self.settings.partitions))

    def _deliver(self) -> str:
        return self.router.deliver_next() if len(self.router) else "nothing"

    def _poll(self) -> str:
        node = self._any_node()
        if node is None or not node.fetchers:
            return "nobody"
        leader = self.random.choice(list(node.fetchers))
        return f"{node.broker_id} of {leader}: {node.poll(leader)}"

    def _leader(self, tp: TopicPartition) -> Node | None:
        """A broker that takes itself for the leader; it need not be."""
        leaders = [node for node in self.nodes.values() if tp in {p.topic_partition for p in node.led_partitions()}]
        return self.random.choice(leaders) if leaders else None

    def _produce(self) -> str:
        tp = self._any_partition()
        node = self._leader(tp)
        if node is None:
            return f"{tp}: no leader"
        values = []
        builder = RecordBatchBuilder()
        for _ in range(self.random.randint(1, 3)):
            self._values += 1
            value = b"%d" % self._values + b"." * self.random.randint(0, 80)
            values.append(value)
            builder.append(value, None, timestamp=self.time.milliseconds())

        def answered(error: ApiError | None, base_offset: int) -> None:
            self._trace.update(f"{values[0]!r} {type(error).__name__} {base_offset}".encode())
            if error is None and not self.settings.unclean:
                self.history.acknowledge(tp, base_offset, values)

        node.produce(tp, builder.build(), answered)
        return f"{tp} at {node.broker_id}: {len(values)} from {self._values}"

    def _pass_time(self) -> str:
        self.time.sleep(self.random.randint(1, 200))
        for node in list(self.nodes.values()):
            node.tick()
        return ""

    def _consume(self) -> str:
        """A consumer reads one batch below the high watermark of whoever takes itself for the leader."""
        tp = self._any_partition()
        node = self._leader(tp)
        if node is None:
            return f"{tp}: no leader"
        partition = node.replica_manager.get_partition_or_exception(tp)
        log = partition.log
        offset = self.random.randint(log.log_start_offset, log.high_watermark)
        read = partition.read_records(offset, 300, FetchIsolation.HIGH_WATERMARK, True)
        if not self.settings.unclean:
            self.history.check_below_high_watermark(log, f"broker {node.broker_id}")
        return f"{tp} at {node.broker_id}: {read.fetched.records.size_in_bytes} bytes from {offset}"

    def _elect(self) -> str:
        tp = self._any_partition()
        broker = self.random.randrange(self.settings.brokers)
        return f"{tp} {broker}: {self.controller.elect(tp, broker)}"

    def _delete_records(self) -> str:
        tp = self._any_partition()
        node = self._leader(tp)
        if node is None:
            return f"{tp}: no leader"
        partition = node.replica_manager.get_partition_or_exception(tp)
        log = partition.log
        low_watermark = partition.delete_records_on_leader(
            self.random.randint(log.log_start_offset, log.high_watermark)
        )
        node.log_manager.checkpoint_log_start_offsets()
        return f"{tp} at {node.broker_id}: below {low_watermark}"

    def _cut_a_link(self) -> str:
        ends = self.random.sample([CONTROLLER, *range(self.settings.brokers)], 2)
        self.router.cut_links.add(frozenset(ends))
        return str(sorted(ends))

    def _mend_a_link(self) -> str:
        if not self.router.cut_links:
            return "none is cut"
        link = self.random.choice(sorted(self.router.cut_links, key=sorted))
        self.router.cut_links.remove(link)
        return str(sorted(link))

    def _crash(self) -> str:
        node = self._any_node()
        if node is None:
            return "nobody"
        how = self.random.choice(["loses power", "is killed", "stops"])
        broker = node.broker_id
        # The last member of an ISR keeps what it wrote: else an acknowledged record could be nowhere.
        is_last = any(
            broker in state.isr and not any(member in self.nodes for member in state.isr if member != broker)
            for state in self.controller.partitions.values()
        )
        if how == "loses power" and is_last and not self.settings.unclean:
            how = "is killed"
        del self.nodes[broker]
        self.crashes += 1
        cut = ""
        if how == "stops":
            node.stop()
        else:
            cut = self.disks[broker].crash(node.log_manager, self.random, loses_power=how == "loses power")
        self.router.close_connections(broker)
        self.controller.broker_failed(broker)
        return f"{broker} {how} {cut}"

    def _restart(self) -> str:
        down = [broker for broker in range(self.settings.brokers) if broker not in self.nodes]
        if not down:
            return "nobody"
        broker = self.random.choice(down)
        self._start(broker)
        return str(broker)

    # -- who sends what ---------------------------------------------------------------------------------------------

    def _start(self, broker: int) -> None:
        self.nodes[broker] = Node(
            broker,
            self.controller._next_broker_epoch,
            self.disks[broker].path,
            self.time,
            self.random,
            LogConfig(
                segment_bytes=self.settings.segment_bytes,
                index_interval_bytes=200,
                segment_index_bytes=240,
                retention_ms=-1,
                file_delete_delay_ms=500,
                min_insync_replicas=self.settings.min_insync_replicas,
            ),
            truncates_on_fetch=self.settings.truncates_on_fetch,
            send_request=lambda leader, in_flight: self._send_request(broker, leader, in_flight),
            alter_isr=lambda asked: self._alter_isr(broker, asked),
        )
        self.controller.register(broker)

    def _tell(self, broker: int, update: LeaderAndIsrUpdate) -> None:
        def deliver() -> None:
            node = self.nodes[broker]
            leads = node.become_leader_or_follower(update, CONTROLLER_EPOCH)
            if leads and not self.settings.unclean:
                log = node.replica_manager.get_partition_or_exception(update.topic_partition).log
                self.history.check_nothing_is_lost(log, f"broker {broker}, leader with epoch {update.leader_epoch}")

        name = f"LeaderAndIsr {update.topic_partition} {update.leader}/{update.leader_epoch} {list(update.isr)}"
        self.router.send(Message(name, CONTROLLER, broker, deliver, is_reliable=True))

    def _alter_isr(self, broker: int, asked: AlterIsr) -> None:
        def deliver() -> None:
            stored = self.controller.alter_isr(
                asked.topic_partition, asked.leader_epoch, asked.partition_epoch, asked.isr
            )
            answer = Message(
                f"AlterIsr answer {asked.topic_partition} {list(stored.isr)}",
                CONTROLLER,
                broker,
                lambda: self.nodes[broker].isr_stored(asked, stored),
                is_reliable=True,
            )
            self.router.send(answer)

        name = f"AlterIsr {asked.topic_partition} {sorted(asked.isr)}"
        self.router.send(Message(name, broker, CONTROLLER, deliver, is_reliable=True))

    def _send_request(self, follower: int, leader: int, in_flight: InFlight) -> None:
        follower_node = self.nodes[follower]
        name = type(in_flight.request).__name__

        def deliver() -> None:
            node = self.nodes.get(leader)
            if node is None:
                return
            reply = node.serve(in_flight.request, follower, follower_node.broker_epoch)
            answer = Message(f"{name} reply", leader, follower, lambda: follower_node.take_reply(in_flight, reply))
            self.router.send(answer)

        self.router.send(Message(name, follower, leader, deliver))

    # -- what must hold ---------------------------------------------------------------------------------------------

    def check(self) -> None:
        if self.settings.unclean:
            return
        for broker, node in self.nodes.items():
            for partition in node.replica_manager.partitions():
                self.history.check_below_high_watermark(partition.log, f"broker {broker}")

    def settle(self) -> None:
        """No more failures: every broker runs, and in the end all replicas are equal to the last byte."""
        self.router.cut_links.clear()
        self.router.loss = self.router.duplication = 0
        while len(self.nodes) < self.settings.brokers:
            self._note("restart", self._restart())
        for _ in range(4000):
            for node in list(self.nodes.values()):
                for leader in list(node.fetchers):
                    node.poll(leader)
            while len(self.router) and self.random.random() < 0.95:
                self._note("deliver", self._deliver())
            self._note("pass_time", self._pass_time())
            if self._is_settled():
                break
        else:
            raise AssertionError(f"the replicas do not settle: {self._offsets()}")
        self.check()
        for tp in self.controller.partitions:
            self._check_identical(tp)

    def _is_settled(self) -> bool:
        for tp, state in self.controller.partitions.items():
            if len(state.isr) < self.settings.brokers:
                return False
            logs = [node.log_manager.get_log(tp) for node in self.nodes.values()]
            ends = {offset for log in logs if log is not None for offset in (log.log_end_offset, log.high_watermark)}
            if len(ends) != 1:
                return False
        return True

    def _offsets(self) -> dict[str, list[object]]:
        return {
            str(tp): [state, *(node.log_manager.get_log(tp) for node in self.nodes.values())]
            for tp, state in self.controller.partitions.items()
        }

    def _check_identical(self, tp: TopicPartition) -> None:
        logs = [node.replica_manager.get_partition_or_exception(tp).log for node in self.nodes.values()]
        # A leader may fail before its followers hear that records were deleted.
        start = max(log.log_start_offset for log in logs)
        contents = [[(record.offset, record.value) for record in log.records(start)] for log in logs]
        for other in contents[1:]:
            assert other == contents[0], f"{tp}: the replicas differ"
        if not self.settings.unclean:
            for log in logs:
                self.history.check_nothing_is_lost(log, f"{log} at the end")

    def close(self) -> None:
        for node in self.nodes.values():
            node.stop()
