"""A topic of many partitions is created: the time beside that of the system calls it needs.

Nothing is synced per partition; the broker's metadata store is synced once.  The limit makes the same directories and
files with the same bytes and sizes, from Python's os module, and looks for nothing first.
"""

import os
import shutil

import pytest

import kcore
from bench.conftest import record_role

PARTITIONS = 200
ROUNDS = 7
INDEX_BYTES = 10 * 1024 * 1024
TOPIC_ID = b"version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAQ"
GROUP = "create a topic of 200 partitions"


def make_files(directory):
    """The calls that a new partition takes."""
    os.mkdir(directory)
    os.listdir(directory)
    log = os.open(f"{directory}/{0:020}.log", os.O_RDWR | os.O_CREAT)
    for suffix, size in ((".index", INDEX_BYTES), (".timeindex", INDEX_BYTES - 4)):
        fd = os.open(f"{directory}/{0:020}{suffix}", os.O_RDWR | os.O_CREAT)
        os.ftruncate(fd, size)
        os.close(fd)
    for name, data in (("partition.metadata", TOPIC_ID), ("leader-epoch-checkpoint", b"0\n1\n0 0\n")):
        fd = os.open(f"{directory}/{name}.tmp", os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        os.pwrite(fd, data, 0)
        os.close(fd)
        os.rename(f"{directory}/{name}.tmp", f"{directory}/{name}")
    return log  # it stays open, as a log's does


@pytest.mark.benchmark(group=GROUP)
def bench_create_partitions(benchmark, bench_dir):
    record_role(benchmark, "ours", per_round=PARTITIONS)
    with kcore.Broker(data_dir=str(bench_dir / "create")) as broker:
        names = iter(f"topic-{n}" for n in range(1000))
        benchmark.pedantic(lambda: broker.create_topic(next(names), partitions=PARTITIONS), rounds=ROUNDS)
    shutil.rmtree(bench_dir / "create")


@pytest.mark.benchmark(group=GROUP)
def bench_create_partitions_system_calls(benchmark, bench_dir):
    record_role(benchmark, "limit", per_round=PARTITIONS, label="mkdir, open, ftruncate, pwrite, rename")
    root = bench_dir / "calls"
    root.mkdir()
    topics = iter(range(1000))
    open_files = []

    def create():
        topic = next(topics)
        open_files.extend(make_files(f"{root}/topic-{topic}-{n}") for n in range(PARTITIONS))

    benchmark.pedantic(create, rounds=ROUNDS)
    for fd in open_files:
        os.close(fd)
    shutil.rmtree(root)
