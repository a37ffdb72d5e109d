import threading

from kcore.common.locks import ReadWriteLock


def started(target):
    thread = threading.Thread(target=target, daemon=True)
    thread.start()
    return thread


def test_readers_share_and_a_writer_waits_for_them_and_holds_new_ones_back():
    lock = ReadWriteLock()
    order = []
    lock.acquire_read()
    lock.acquire_read()

    def write():
        with lock.write():
            order.append("write")

    def read():
        lock.acquire_read()
        order.append("read")
        lock.release_read()

    writer = started(write)
    writer.join(0.05)
    assert writer.is_alive()
    reader = started(read)
    reader.join(0.05)
    assert reader.is_alive()
    lock.release_read()
    assert order == []
    lock.release_read()
    writer.join(60)
    reader.join(60)
    assert order == ["write", "read"]


def test_writers_exclude_each_other_and_readers():
    lock = ReadWriteLock()
    state = {"value": 0, "torn": 0}

    def write():
        for _ in range(300):
            with lock.write():
                state["value"] += 1
                state["value"] += 1

    def read():
        for _ in range(1000):
            lock.acquire_read()
            state["torn"] += state["value"] % 2
            lock.release_read()

    threads = [started(target) for target in (write, write, read, read)]
    for thread in threads:
        thread.join(60)
    assert state == {"value": 1200, "torn": 0}
