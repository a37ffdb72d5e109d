"""The page of a broker or a cluster: a `kcore web` process that ends with this one."""

from __future__ import annotations

import importlib.util
import os
import signal
import socket
import subprocess
import sys
from html import escape

from kcore.common.optional_packages import missing_package
from kcore.server.config.listeners import authority

#: How long the process may take to end.
_STOP_S = 10


class PageUrl(str):
    """The address of a page.  A notebook shows it as a link."""

    def _repr_html_(self) -> str:
        return f'<a href="{escape(self)}" target="_blank" rel="noopener">{escape(self)}</a>'


def page_url(listener: socket.socket) -> PageUrl:
    return PageUrl(f"http://{authority(*listener.getsockname()[:2])}/")


def check_page_packages(what: str) -> None:
    """Raises ImportError where what the page needs is not installed.  what: the option or the name that asks for it."""
    for name in ("starlette", "uvicorn", "jinja2"):
        if importlib.util.find_spec(name) is None:
            raise missing_package(what, "web", ModuleNotFoundError(name=name))


class WebProcess:
    """For one thread at a time.  Lifetime: start() once, stop().  The listener is its own from the first on."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self._process: subprocess.Popen[bytes] | None = None
        self.url = page_url(listener)

    @classmethod
    def started(cls, what: str, bootstrap: str) -> WebProcess:
        """On a free port of this machine's own address.  Raises as check_page_packages() and start()."""
        check_page_packages(what)
        page = cls(socket.create_server(("127.0.0.1", 0)))
        try:
            page.start(bootstrap)
        except BaseException:
            page.stop()
            raise
        return page

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self, bootstrap: str) -> None:
        """A browser may connect when it returns; it waits until the process answers.  Raises OSError."""
        # It inherits the mask: a SIGTERM that comes before it serves waits until it can stop.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        number = self._listener.fileno()
        command = [sys.executable, "-m", "kcore", "web", "--bootstrap", bootstrap]
        command += ["--parent", str(os.getpid()), "--http-socket", str(number)]
        try:
            # In a process group of its own: a Ctrl-C is for this process.
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=[number], process_group=0)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        self._listener.close()

    def stop(self) -> None:
        self._listener.close()
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
