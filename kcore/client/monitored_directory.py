"""Where a broker of this machine answers questions about itself: its data directory, by its address or its process."""

from __future__ import annotations

import os

from kcore.client.admin_client import Address, Node
from kcore.client.broker_process import BrokerProcess, process_of_address
from kcore.client.monitor import FILE_NAME, MonitorError, ask_broker, starting_text


def directory_of_address(address: Address, node: Node | None, timeout_s: float) -> str:
    """The directory with the socket of the broker that listens there.  node: what it is called in errors.

    Raises MonitorError.
    """
    host, port = address
    name = f"{host}:{port}" if node is None else f"broker {node.broker_id} at {host}:{port}"
    process = process_of_address(host, port)
    if process is None:
        raise MonitorError(
            f"{name}: no process of this machine, and of this user, listens there.  Run the command on the broker's "
            "machine: it reads a socket in the broker's data directory, since Kafka's protocol has no request for this"
        )
    return directory_of_process(process, name, port, timeout_s)


def directory_of_process(process: BrokerProcess, name: str, port: int | None, timeout_s: float) -> str:
    """The directory with the socket of a broker of this process.  name: what it is called in errors.  port: of the
    broker, where its process may have several.  Raises MonitorError, OSError."""
    found = [path for path in process.data_dirs if os.path.exists(os.path.join(path, FILE_NAME))]
    if len(found) > 1 and port is not None:
        found = [path for path in found if port in ask_broker(path, "ports", timeout_s)]
    if not found:
        stopped = process.stopped_reason()
        raise MonitorError(
            f"{name}: {stopped}"
            if stopped is not None
            else f"{name}: its process {process.pid} has no data directory with {FILE_NAME}, {_serves(process)}"
        )
    return found[0]


def _serves(process: BrokerProcess) -> str:
    directories = ", ".join(process.data_dirs)
    if not directories:
        return "it may be no broker, or one of another user"
    return f"it serves {directories} and {starting_text(process)}"
