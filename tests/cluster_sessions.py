"""Brokers of a kcore.Cluster over SQLite that die: with sessions that are so long that no pause of the machine ends one
of those that live; that of a broker that was killed ends with it."""

import contextlib
import os

#: Of the clusters of such tests.
LONG_MS = 60_000


@contextlib.contextmanager
def lasting_session(broker):
    """In the `with` block the broker dies; its session lasts on until the block's end, as that of a process that
    stands still: the lock of its file stays with copies of the descriptor."""
    path = f"{broker.store.path}-session-{broker.store.session_id}"
    with contextlib.ExitStack() as copies:
        for name in os.listdir("/proc/self/fd"):
            with contextlib.suppress(OSError):
                if os.readlink(f"/proc/self/fd/{name}") == os.path.realpath(path):
                    copies.callback(os.close, os.dup(int(name)))
        yield
