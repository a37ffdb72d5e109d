"""How the fetchers of a broker are put together."""

from contextlib import ExitStack

from kcore.common.time import SYSTEM_TIME
from kcore.common.topic_partition import TopicPartition
from kcore.server.broker import Broker
from kcore.server.member.inter_broker_connections import InterBrokerConnections
from kcore.server.member.replica_fetchers import replica_fetchers


def test_RFT_15_DIR_07_the_fetchers_of_a_broker_mark_the_log_that_moves(tmp_path, monkeypatch):
    tp = TopicPartition("t", 0)
    with Broker(str(tmp_path)) as broker, ExitStack() as parts:
        broker.create_topic("t")
        for value in (b"a", b"b", b"c"):
            broker.produce("t", value, partition=0)
        marked = []
        moves = broker.replica_manager.log_dir_moves
        monkeypatch.setattr(moves, "mark_for_truncation", lambda *arguments: marked.append(arguments))
        fetchers = replica_fetchers(
            broker.config,
            InterBrokerConnections(broker.config, broker.metadata_cache, SYSTEM_TIME),
            broker.replica_manager,
            broker.replica_manager.log_manager,
            broker.metadata_cache,
            None,
            lambda: -1,
            parts,
        )
        logs = fetchers._make_logs()
        monkeypatch.setattr(
            broker.replica_manager.log_manager, "truncate_to", lambda offsets, **options: None
        )  # it is led here
        logs.truncate_to(tp, 2, False)
        assert marked == []
        logs.truncate_to(tp, 1, True)
        assert marked == [(tp, 1)]
