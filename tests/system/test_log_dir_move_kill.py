"""A broker is killed again and again while the logs of a topic move between its data directories, under load."""

import os
import random
import signal
import threading
import time

import pytest

import kcore
from kcore.errors import LogClosed
from kcore.log.log_file_names import parse_partition_directory
from kcore.protocol.messages import alter_replica_log_dirs as a
from kcore.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from tests.system.test_kill_dash_nine import Serve, produce_until_dead
from tests.unit.server.client import Client
from tests.waiting import wait_until


def move_until_dead(broker, dirs, rng, moves):
    """Move one of the two logs to some directory, the one where it is included, every few milliseconds."""
    try:
        with Client(broker) as client:
            while True:
                topic = a.AlterReplicaLogDirTopic(name="t", partitions=[rng.randrange(2)])
                request = a.AlterReplicaLogDirsRequest(
                    dirs=[a.AlterReplicaLogDir(path=rng.choice(dirs), topics=[topic])]
                )
                (result,) = client.ask(request, 2).results
                assert [partition.error_code for partition in result.partitions] == [0]
                moves.append(1)
                time.sleep(rng.random() * 0.05)
    except (OSError, EOFError):
        pass  # it is dead


@pytest.mark.parametrize("seed", range(2))
def test_DIR_06_every_acknowledged_record_survives_kills_during_moves_and_one_log_is_served(tmp_path, seed):
    rng = random.Random(seed)
    dirs = [str(tmp_path / "x"), str(tmp_path / "y")]
    acknowledged, moves = [], []
    for life in range(4):
        options = ("-o", f"log.dirs={','.join(dirs)}", "-o", "log.segment.bytes=200000", "-o", "num.partitions=2")
        broker = Serve(None, *options, "-o", "log.segment.delete.delay.ms=0", "-o", "log.retention.ms=-1")
        with Client(broker) as client:
            (topic,) = client.ask(MetadataRequest(topics=[MetadataRequestTopic(name="t")]), 9).topics
            assert topic.error_code == 0
        threads = [
            threading.Thread(target=produce_until_dead, args=(broker, 10 * life + n, acknowledged)) for n in range(2)
        ]
        threads.append(threading.Thread(target=move_until_dead, args=(broker, dirs, rng, moves)))
        for thread in threads:
            thread.start()
        time.sleep(0.2 + rng.random())
        wait_until(lambda life=life: len(acknowledged) > life and len(moves) > life)
        broker.stop(signal.SIGKILL)
        for thread in threads:
            thread.join()
    assert acknowledged and moves, "the broker must have done something"
    with kcore.Broker(log_dirs=",".join(dirs)) as survivor:
        for number in range(2):
            expected = {offset: value for partition, offset, value in acknowledged if partition == number}
            # The survivor ends the moves that the kill interrupted: a copy may replace the log while it is read.
            (records,) = wait_until(lambda n=number: [values_of(survivor.log("t", n))], ignoring=LogClosed)
            missing = {offset for offset, value in expected.items() if records.get(offset) != value}
            assert not missing, f"seed={seed}: {len(missing)} of {len(expected)} acknowledged records of t-{number}"
    served = [name for path in dirs for name in os.listdir(path) if is_served(name)]
    assert sorted(served) == ["t-0", "t-1"], f"seed={seed}"


def values_of(log):
    return {record.offset: bytes(record.value) for record in log.records()}


def is_served(name):
    parsed = parse_partition_directory(name)
    return parsed is not None and not parsed.mark
