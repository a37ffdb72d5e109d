"""Answers questions about this broker from processes of this machine; the protocol is in kcore/client/monitor.py."""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import selectors
import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Protocol

from kcore.client.monitor import FILE_NAME, MAX_QUESTION_BYTES, socket_address
from kcore.common.shutdownable_thread import ShutdownableThread
from kcore.common.text import plain_error
from kcore.errors import KafkaError

if TYPE_CHECKING:
    from kcore.log.lso_explanation import LsoExplanation
    from kcore.metadata.store import MetadataStore, StoreLock
    from kcore.replica.explain import FetchExplanation, IsrExplanation

logger = logging.getLogger(__name__)

#: How long a client may take for its question, and for reading the answer: the next one waits meanwhile.
CLIENT_TIMEOUT_S = 5.0

#: command -> what answers it; keyword arguments are those of the question, the result is what JSON can say.
Commands = Mapping[str, Callable[..., Any]]


class MonitorSocket(ShutdownableThread):
    """A thread that answers one question after the other; it sleeps while there is none.

    Lifetime: bind(), start(), shutdown().  A socket that a killed broker has left is replaced.
    """

    def __init__(self, name: str, data_dir: str, commands: Commands) -> None:
        super().__init__(name)
        self._data_dir = data_dir
        self._path = os.path.join(data_dir, FILE_NAME)
        self._commands = commands
        self._selector = selectors.DefaultSelector()
        self._wake_reader, self._wake_writer = socket.socketpair()
        self._listener = socket.socket(socket.AF_UNIX)

    def bind(self) -> None:
        """Make the socket's file, for this user alone.  Call it while the directory's lock is held.  Raises OSError."""
        try:
            self._remove_file()
            with socket_address(self._data_dir) as address:
                self._listener.bind(address)
            os.chmod(self._path, 0o600)  # no process can connect before listen()
            self._listener.listen(16)
        except BaseException:
            self._close()
            raise
        self._listener.setblocking(False)
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(self._wake_reader, selectors.EVENT_READ)

    def do_work(self) -> None:
        self._selector.select()
        if not self.is_running:
            return
        try:
            connection, _ = self._listener.accept()
        except OSError as error:
            logger.warning("%s: %s", self._path, plain_error(error))
            self.pause(100)  # no descriptor is left, perhaps
            return
        with connection:
            connection.settimeout(CLIENT_TIMEOUT_S)
            try:
                connection.sendall(self._answer(_first_line(connection)))
            except OSError as error:
                logger.info("%s: a client went away: %s", self._path, plain_error(error))

    def _answer(self, line: bytes) -> bytes:
        try:
            question = json.loads(line)
            command = self._commands[question.pop("command")]
            answer = {"value": command(**question)}
        except (KafkaError, RuntimeError) as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            answer = {"error": f"a question this broker does not know: {error!r}"}
        except Exception as error:
            logger.exception("%s: %r", self._path, line)
            answer = {"error": repr(error)}
        return json.dumps(answer).encode() + b"\n"

    def wake_up(self) -> None:
        try:
            self._wake_writer.send(b"\0")
        except OSError:
            pass  # closed, so no process waits

    def shutdown(self) -> None:
        """Returns when the thread has ended and the file is gone."""
        super().shutdown()
        self._remove_file()
        self._close()

    def _remove_file(self) -> None:
        try:
            os.unlink(self._path)
        except OSError:
            pass  # not there, or a directory that has failed: then bind() says so

    def _close(self) -> None:
        self._selector.close()
        for end in (self._listener, self._wake_reader, self._wake_writer):
            end.close()


def _first_line(connection: socket.socket) -> bytes:
    line = b""
    while b"\n" not in line and len(line) < MAX_QUESTION_BYTES:
        chunk = connection.recv(4096)
        if not chunk:
            break
        line += chunk
    return line


class Monitored(Protocol):
    """A broker."""

    def metrics(self) -> Mapping[Any, Mapping[str, float]]: ...

    @property
    def store(self) -> MetadataStore: ...

    @property
    def explain_isr(self) -> Callable[..., IsrExplanation]: ...

    @property
    def explain_fetch(self) -> Callable[..., FetchExplanation]: ...

    @property
    def explain_lso(self) -> Callable[..., LsoExplanation]: ...


def start_monitor(
    broker: Monitored,
    broker_id: int,
    data_dir: str,
    ports: Sequence[int],
    denied_brokers: Mapping[Any, str],
    parts: ExitStack,
) -> None:
    """For `kcore metrics`, `kcore explain` and who looks for a locked store, until `parts` closes it.  A broker serves
    without it too.

    ports: of its listeners, which tell the brokers of one process apart.  denied_brokers: that of AuthHelper.
    """
    commands = {
        "metrics": broker.metrics,
        "ports": lambda: list(ports),
        "store_lock": lambda: _as_dict(broker.store.lock()),
        "denied_brokers": lambda: list(denied_brokers.values()),
        "explain_isr": lambda **question: _explanation(broker.explain_isr(**question)),
        "explain_fetch": lambda **question: _explanation(broker.explain_fetch(**question)),
        "explain_lso": lambda **question: _explanation(broker.explain_lso(**question)),
    }
    monitor = MonitorSocket(f"kcore-monitor-{broker_id}", data_dir, commands)
    try:
        monitor.bind()
    except OSError as error:
        logger.warning(
            "%s: `kcore metrics` and `kcore explain` cannot ask this broker: %s", data_dir, plain_error(error)
        )
        return
    monitor.start()
    parts.callback(monitor.shutdown)


def _as_dict(lock: StoreLock | None) -> dict[str, Any] | None:
    return None if lock is None else lock._asdict()


def _explanation(explained: IsrExplanation | FetchExplanation | LsoExplanation) -> dict[str, Any]:
    """For JSON: the values, and the text for people."""
    return {"text": str(explained), "value": dataclasses.asdict(explained)}
