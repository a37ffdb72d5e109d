"""Ending a command that writes: a signal asks for the end and raises no KeyboardInterrupt wherever it comes.

KeyboardInterrupt can come between the acquisition of a lock and the block that releases it.  The lock then stays held,
and the command waits for it when it closes its logs.
"""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
#: What ends the thread: no signal has this number.
_END = 0


@contextmanager
def stop_on_signal(stop: Callable[[], None]) -> Iterator[threading.Event]:
    """While the block runs, the first SIGINT or SIGTERM calls stop() on a thread of its own and sets the event.

    A second one ends the process at once.  For the main thread.  stop() raises nothing.
    """
    stopped = threading.Event()
    reader, writer = socket.socketpair()

    def wait() -> None:
        while (number := reader.recv(1)[0]) != _END:
            if number not in _SIGNALS:
                continue  # one that has another handler
            if stopped.is_set():
                os._exit(128 + number)
            stopped.set()
            stop()

    with reader, writer:
        writer.setblocking(False)
        previous_fd = signal.set_wakeup_fd(writer.fileno())
        previous = {number: signal.signal(number, lambda *_: None) for number in _SIGNALS}
        mask = signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)  # whoever started this process may block them
        thread = threading.Thread(target=wait, name="stop-on-signal", daemon=True)
        thread.start()
        try:
            yield stopped
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            for number, handler in previous.items():
                signal.signal(number, handler)
            signal.set_wakeup_fd(previous_fd)
            writer.send(bytes([_END]))
            thread.join()
