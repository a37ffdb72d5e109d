"""What is left in a process when its brokers have stopped."""

import gc
import os
import resource
import tempfile
import threading

import kcore
from kcore.testing.kafka_fixture import KafkaFixture
from tests.own_process import in_own_process

#: With KCORE_LONG=1 as many as a large suite of a user has.
BROKERS = 500 if "KCORE_LONG" in os.environ else 100
#: Of them those after which nothing may grow: pools and caches are filled by then.
WARM_UP = BROKERS // 4
#: Of all the others together: 0.4 MB were measured for 400 brokers.
MAX_GROWTH_BYTES = 4 << 20


def serve_a_client():
    with kcore.Broker() as broker:
        broker.create_topic("orders", 3)
        broker.produce("orders", "a book")
        kafka = KafkaFixture(broker)
        kafka.wait_for_records("orders", 1)
        assert kafka.describe()
    gc.collect()  # cycles that wait for it are no leak


def resident_bytes():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


def left_behind():
    """Threads, descriptors, and directories of brokers."""
    gc.collect()
    return threading.active_count(), len(os.listdir("/proc/self/fd")), os.listdir(tempfile.gettempdir())


@in_own_process
def test_brokers_one_after_the_other_leave_no_thread_descriptor_directory_or_memory_behind():
    with tempfile.TemporaryDirectory() as directory:
        tempfile.tempdir = directory
        for _ in range(WARM_UP):
            serve_a_client()
        before, bytes_before = left_behind(), resident_bytes()
        for _ in range(BROKERS - WARM_UP):
            serve_a_client()
        assert left_behind() == before == (1, before[1], [])
        assert resident_bytes() - bytes_before < MAX_GROWTH_BYTES
