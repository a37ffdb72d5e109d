"""Questions about a running broker, from another process of the same machine: a Unix socket in its data directory.

A question is one line of JSON, {"command": name, ...arguments}; the answer is one line, {"value": ...} or
{"error": text}.  Nothing can be changed over it, and whoever may not read the data directory may not connect
(docs/decisions/0018-metrics-count-under-the-gil.md).
"""

from __future__ import annotations

import json
import os
import socket
import struct
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any

from kcore.client import broker_process
from kcore.common.time import SYSTEM_TIME
from kcore.errors import KafkaError

#: The socket's name in the first data directory of a broker.
FILE_NAME = "kcore-monitor.sock"
#: A path of more bytes does not fit into a socket's address (104 on macOS, 108 on Linux, a zero byte included).
MAX_PATH_BYTES = 103
MAX_QUESTION_BYTES = 1 << 16
#: After so long without an answer the broker's process is looked at.
_DOUBT_S = 1.0
#: A broker needs up to a second to find out whether its store is locked.
_STORE_LOCK_S = 2.0
_UCRED = struct.Struct("@iII")


class MonitorError(KafkaError):
    """A broker could not answer a question about itself."""


@contextmanager
def socket_address(data_dir: str) -> Iterator[str]:
    """An address to bind or connect to, while the block runs.  Raises OSError, also for a path that is too long."""
    path = os.path.join(data_dir, FILE_NAME)
    if len(os.fsencode(path)) <= MAX_PATH_BYTES:
        yield path
    elif sys.platform == "linux":
        directory = os.open(data_dir, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            yield f"/proc/self/fd/{directory}/{FILE_NAME}"
        finally:
            os.close(directory)
    else:
        raise OSError(f"{path}: too long for a socket, {MAX_PATH_BYTES} bytes are the most")


def ask_broker(data_dir: str, command: str, timeout_s: float = 30.0, **arguments: Any) -> Any:
    """The answer of the broker that serves data_dir, as JSON has it.

    Raises MonitorError if no broker of this machine serves it, if it answers with an error, or not within timeout_s; if
    its process stands still, after a second; OSError.
    """
    question = json.dumps({"command": command, **arguments}).encode() + b"\n"
    deadline_ms = SYSTEM_TIME.hi_res_clock_ms() + timeout_s * 1000
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(min(_DOUBT_S, timeout_s))
        try:
            with socket_address(data_dir) as address:
                connection.connect(address)
        except (FileNotFoundError, ConnectionRefusedError) as error:
            raise MonitorError(f"{data_dir}: {_why_nobody_listens(data_dir)}") from error
        except (BlockingIOError, TimeoutError):
            raise MonitorError(
                f"{data_dir}: its broker takes no more questions: others wait for their answer already"
                + _why(broker_process.process_of_data_dir(data_dir))
            ) from None
        process = _peer(connection)
        connection.sendall(question)
        received = _receive_all(connection, data_dir, process, timeout_s, deadline_ms)
    try:
        answer = json.loads(received)
    except ValueError as error:
        raise MonitorError(f"{data_dir}: the broker stopped before it answered") from error
    if "error" in answer:
        raise MonitorError(answer["error"])
    return answer["value"]


def store_lock(process: broker_process.BrokerProcess) -> str | None:
    """ "the metadata store /data/cluster.db is locked by process 123 (sqlite3), since ..." as a broker of this process
    says; None if it is not, or no broker answers that within a second or two."""
    for data_dir in process.data_dirs:
        if not os.path.exists(os.path.join(data_dir, FILE_NAME)):
            continue
        try:
            lock = ask_broker(data_dir, "store_lock", _STORE_LOCK_S)
        except (MonitorError, OSError):
            continue
        return None if lock is None else _store_lock_text(**lock)
    return None


def store_lock_at(host: str, port: int) -> str | None:
    """store_lock() of the process that listens there; None also where it is not one of this machine."""
    process = broker_process.process_of_address(host, port)
    return None if process is None else store_lock(process)


def _store_lock_text(file: str, since_ms: int, holder: str | None) -> str:
    since = datetime.fromtimestamp(since_ms / 1000)
    return (
        f"the metadata store {file} is locked by {holder or 'another program'}, since {since:%F %T} at the latest: "
        "until it lets go no topic, leader, ISR or group's coordinator changes"
    )


def _receive_all(
    connection: socket.socket,
    data_dir: str,
    process: broker_process.BrokerProcess | None,
    timeout_s: float,
    deadline_ms: float,
) -> bytes:
    """Raises MonitorError."""
    received = b""
    while True:
        try:
            chunk = connection.recv(1 << 16)
        except TimeoutError:
            left_s = (deadline_ms - SYSTEM_TIME.hi_res_clock_ms()) / 1000
            if left_s <= 0 or (process is not None and process.stopped_reason() is not None):
                number = "" if process is None else f" (process {process.pid})"
                limit = f" within {timeout_s:g} s" if left_s <= 0 else ""
                raise MonitorError(f"{data_dir}: its broker{number} does not answer{limit}{_why(process)}") from None
            connection.settimeout(min(_DOUBT_S, left_s))
            continue
        if not chunk:
            return received
        received += chunk


def _why(process: broker_process.BrokerProcess | None) -> str:
    reason = None if process is None else process.silence_reason()
    return "" if reason is None else f": {reason}"


def _why_nobody_listens(data_dir: str) -> str:
    process = broker_process.process_of_data_dir(data_dir)
    if process is None:
        inner = _inner_directories(data_dir)
        if not inner:
            return f"no broker of this machine serves it (its first data directory has {FILE_NAME})"
        which = "that" if len(inner) == 1 else "one of them"
        return f"no broker of this machine serves it, but {', '.join(inner)} in it: name {which}"
    first = [path for path in process.data_dirs if os.path.exists(os.path.join(path, FILE_NAME))]
    if first and os.path.realpath(data_dir) not in first:
        return f"it is not its broker's first data directory: ask {' or '.join(first)}"
    if (stopped := process.stopped_reason()) is not None:
        return f"its broker takes no questions: {stopped}"
    return f"its broker (process {process.pid}) {starting_text(process)}"


def _inner_directories(data_dir: str) -> list[str]:
    """Those of brokers, where data_dir is what `kcore serve --brokers` was given."""
    try:
        names = sorted(os.listdir(data_dir))
    except OSError:
        return []
    return [name for name in names if os.path.exists(os.path.join(data_dir, name, FILE_NAME))]


def starting_text(process: broker_process.BrokerProcess) -> str:
    """Of a process that has a data directory, takes no questions there and does not stand still."""
    return "; ".join(filter(None, ["may still be starting", process.locked_reason()]))


def _peer(connection: socket.socket) -> broker_process.BrokerProcess | None:
    """The process that listens at the other end; None where it is not known."""
    if sys.platform != "linux":
        return None
    pid, _, _ = _UCRED.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))
    return broker_process.process(pid) if pid > 0 else None  # 0: it is in another container
