"""The page of `kcore serve --http`: a `kcore web` process that ends with this one."""

from __future__ import annotations

import importlib.util
import ipaddress
import os
import signal
import socket
import subprocess
import sys

from kcore.common.optional_packages import missing_package
from kcore.server.config.listeners import authority, host_and_port
from kcore.tools.command_line import UsageError

DEFAULT_ADDRESS = "127.0.0.1:8080"
#: How long the process may take to end.
_STOP_S = 10


def http_socket(text: str) -> socket.socket:
    """A socket that listens at HOST:PORT.  Raises UsageError, OSError."""
    address = host_and_port(text)
    if address is None:
        raise UsageError(f"--http {text}: expected HOST:PORT, as {DEFAULT_ADDRESS}")
    host, port = address
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=128)
    except OSError as error:
        raise type(error)(error.errno, f"--http {text}: {os.strerror(error.errno or 0)}") from None


def is_loopback(host: str) -> bool:
    """Whether a socket's address can be reached from this machine alone."""
    return ipaddress.ip_address(host.partition("%")[0]).is_loopback


def page_url(host: str, port: int) -> str:
    return f"http://{authority(host, port)}/"


class WebProcess:
    """For one thread.  Lifetime: start() once, stop().  Its address is taken when it is made."""

    def __init__(self, address: str) -> None:
        """Raises UsageError, OSError, and ImportError where what the page needs is not installed."""
        for name in ("starlette", "uvicorn", "jinja2"):
            if importlib.util.find_spec(name) is None:
                raise missing_package("--http", "web", ModuleNotFoundError(name=name))
        self._listener = http_socket(address)
        self._process: subprocess.Popen[bytes] | None = None
        self.url = page_url(*self._listener.getsockname()[:2])

    def start(self, bootstrap: str) -> None:
        """On a thread that lives as long as this process: the page ends with it.  Raises OSError."""
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
