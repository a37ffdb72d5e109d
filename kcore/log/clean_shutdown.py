""".kafka_cleanshutdown: the marker that a data directory was closed in order, so that nothing needs recovery.

Its presence counts.  Since 3.7 it holds JSON, {"version":0,"brokerEpoch":N}; older ones are empty.
Source: CleanShutdownFileHandler, Kafka 4.x.
"""

from __future__ import annotations

import json
import os

from kcore.common.file import exists, read_file, sync_path, unlink_if_there, write_atomically
from kcore.errors import CorruptFile
from kcore.log.log_file_names import CLEAN_SHUTDOWN_FILE


def was_clean_shutdown(log_dir: str) -> bool:
    return exists(os.path.join(log_dir, CLEAN_SHUTDOWN_FILE))


def read_broker_epoch(log_dir: str) -> int:
    """The broker epoch at the last stop; -1 without a marker or if it does not say."""
    try:
        epoch = json.loads(read_file(os.path.join(log_dir, CLEAN_SHUTDOWN_FILE))).get("brokerEpoch")
    except (OSError, ValueError, AttributeError, CorruptFile):
        return -1
    return epoch if isinstance(epoch, int) and not isinstance(epoch, bool) else -1


def write_clean_shutdown(log_dir: str, broker_epoch: int = -1) -> None:
    """Raises OSError."""
    text = json.dumps({"version": 0, "brokerEpoch": broker_epoch}, separators=(",", ":"))
    write_atomically(os.path.join(log_dir, CLEAN_SHUTDOWN_FILE), text.encode())


def remove_clean_shutdown(log_dir: str) -> bool:
    """Take the marker away before the first write; whether there was one.  Durable when it returns.  Raises OSError."""
    was_clean = was_clean_shutdown(log_dir)
    if unlink_if_there(os.path.join(log_dir, CLEAN_SHUTDOWN_FILE)):
        sync_path(log_dir)
    return was_clean
