"""Producer ids: unique, and one write of the store for a block of them."""

import contextlib
import threading

import pytest

from kcore import errors
from kcore.metadata.embedded_store import EmbeddedStore
from kcore.metadata.memory_store import MemoryStore
from kcore.metadata.producer_ids import BLOCK_SIZE, ProducerIdManager
from kcore.metadata.store import ConnectionLost, NotAllowed


def test_producer_ids_have_no_gaps_while_the_broker_runs_and_cost_a_write_per_block(tmp_path):
    with contextlib.closing(EmbeddedStore(str(tmp_path / "db"))) as store:
        writes = []
        update = store.update
        store.update = lambda *args: writes.append(args) or update(*args)
        manager = ProducerIdManager(1, store)
        assert [manager.generate_producer_id() for _ in range(2 * BLOCK_SIZE)] == list(range(2 * BLOCK_SIZE))
        assert len(writes) == 2
        assert manager.generate_producer_id() == 2 * BLOCK_SIZE


def test_producer_ids_are_never_assigned_twice_not_even_after_a_restart(tmp_path):
    path = str(tmp_path / "db")
    store = EmbeddedStore(path)
    manager = ProducerIdManager(1, store)
    producer_ids = []

    def take():
        producer_ids.extend(manager.generate_producer_id() for _ in range(600))

    threads = [threading.Thread(target=take) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    store.close()
    store = EmbeddedStore(path)
    producer_ids.append(ProducerIdManager(1, store).generate_producer_id())
    assert len(set(producer_ids)) == len(producer_ids)
    assert max(producer_ids) == producer_ids[-1] == 3 * BLOCK_SIZE
    other = ProducerIdManager(2, store)
    other.reserve_up_to(123_456)
    other.reserve_up_to(5)
    assert other.generate_producer_id() == 123_457
    store.close()


@pytest.mark.parametrize(
    ("failure", "answer"),
    [(ConnectionLost("away"), errors.CoordinatorLoadInProgress), (NotAllowed("no"), errors.ClusterAuthorizationFailed)],
)
def test_an_error_of_the_store_is_one_of_the_protocol_and_logged_until_ids_come_again(caplog, failure, answer):
    caplog.set_level("INFO", logger="kcore.metadata.producer_ids")
    store = MemoryStore()
    manager = ProducerIdManager(1, store)
    update = store.update

    def fail(path, change):
        raise failure

    store.update = fail
    for _ in range(3):
        with pytest.raises(answer):
            manager.generate_producer_id()
    store.update = update
    assert [manager.generate_producer_id() for _ in range(3)] == [0, 1, 2]
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]
