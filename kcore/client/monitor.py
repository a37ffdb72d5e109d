"""Questions about a running broker, from another process of the same machine: a Unix socket in its data directory.

A question is one line of JSON, {"command": name, ...arguments}; the answer is one line, {"value": ...} or
{"error": text}.  Nothing can be changed over it, and whoever may not read the data directory may not connect
(docs/decisions/0018-metrics-count-under-the-gil.md).
"""

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from kcore.errors import KafkaError

#: The socket's name in the first data directory of a broker.
FILE_NAME = "kcore-monitor.sock"
#: A path of more bytes does not fit into a socket's address (104 on macOS, 108 on Linux, a zero byte included).
MAX_PATH_BYTES = 103
MAX_QUESTION_BYTES = 1 << 16


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

    Raises MonitorError if no broker of this machine serves it, or if it answers with an error; OSError.
    """
    question = json.dumps({"command": command, **arguments}).encode() + b"\n"
    chunks = []
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(timeout_s)
        try:
            with socket_address(data_dir) as address:
                connection.connect(address)
        except (FileNotFoundError, ConnectionRefusedError) as error:
            raise MonitorError(
                f"{data_dir}: no broker of this machine serves it (its first data directory has {FILE_NAME})"
            ) from error
        connection.sendall(question)
        while chunk := connection.recv(1 << 16):
            chunks.append(chunk)
    try:
        answer = json.loads(b"".join(chunks))
    except ValueError as error:
        raise MonitorError(f"{data_dir}: the broker stopped before it answered") from error
    if "error" in answer:
        raise MonitorError(answer["error"])
    return answer["value"]
