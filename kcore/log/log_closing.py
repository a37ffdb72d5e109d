"""close_logs: the logs of a data directory are closed at a stop, several at a time."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from kcore.common.executors import ExecutorFactory
from kcore.errors import KafkaError
from kcore.log.unified_log import UnifiedLog

logger = logging.getLogger(__name__)


def discard_logs(logs: Iterable[UnifiedLog]) -> None:
    """Close logs whose directory is removed next; a KafkaError is logged."""
    for log in logs:
        try:
            log.discard()
        except KafkaError as error:
            logger.error("closing %s: %s", log.topic_partition, error)


def close_logs(logs: Iterable[UnifiedLog], num_threads: int, executors: ExecutorFactory) -> bool:
    """Close logs, several at a time: fsync is what takes the time, and it waits without the GIL.

    Returns whether all are closed in order and none is offline; a KafkaError is logged.
    """
    pending = iter(logs)
    closed: list[bool] = []

    def close_the_next() -> None:
        # Each thread takes the next log itself: a future for each log takes as long as the close of one that has
        # nothing to write.
        for log in pending:
            closed.append(_close(log))

    tasks = []
    with executors(num_threads, "kcore-log-closing") as threads:
        try:
            for _ in range(num_threads):
                tasks.append(threads.submit(close_the_next))
        except RuntimeError:
            pass  # the interpreter is shutting down, and starts no more threads
    close_the_next()  # what no thread has taken
    for task in tasks:
        task.result()
    return all(closed)


def _close(log: UnifiedLog) -> bool:
    try:
        log.close()
    except KafkaError as error:
        logger.error("closing %s: %s", log.topic_partition, error)
        return False
    return not log.is_offline
