"""Brokers of a kcore.Cluster over SQLite that die: with sessions that are so long that no pause of the machine ends one
of those that live, the others need not wait so long for the end of this one."""

import contextlib
import sqlite3

#: Of the clusters of such tests.
LONG_MS = 60_000
_SHORT_MS = 2000


def kill(cluster, number):
    """As Cluster.kill(); the others notice it after 2 s."""
    with short_session(cluster.brokers[number]):
        cluster.kill(number)


@contextlib.contextmanager
def short_session(broker):
    """In the `with` block the broker dies; its session, which nobody keeps alive any more, lasts 2 s from then on."""
    path, session_id = broker.store.path, broker.store.session_id
    yield
    with contextlib.closing(sqlite3.connect(path, timeout=60)) as db:
        db.execute("UPDATE session SET timeout_ms = ? WHERE id = ?", (_SHORT_MS, session_id))
        db.commit()
