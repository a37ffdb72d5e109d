"""The option --http of `kcore web` and `kcore serve`: where the page is."""

from __future__ import annotations

import ipaddress
import os
import socket

from kcore.server.config.listeners import host_and_port
from kcore.server.web_process import WebProcess, check_page_packages
from kcore.tools.command_line import UsageError

_LOOPBACK = "127.0.0.1"
DEFAULT_ADDRESS = f"{_LOOPBACK}:8080"


def http_socket(text: str) -> socket.socket:
    """A socket that listens at HOST:PORT, or for :PORT at that of 127.0.0.1: who reaches the page reads all topics, so
    all addresses must be written, as 0.0.0.0 or [::].  Raises UsageError, OSError."""
    address = host_and_port(text)
    if address is None:
        raise UsageError(f"--http {text}: expected HOST:PORT, as {DEFAULT_ADDRESS}")
    host, port = address[0] or _LOOPBACK, address[1]
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        is_dual = host == "::" and socket.has_dualstack_ipv6()  # [::] is all addresses, those of IPv4 too
        return socket.create_server((host, port), family=family, backlog=128, dualstack_ipv6=is_dual)
    except OSError as error:
        raise type(error)(error.errno, f"--http {text}: {os.strerror(error.errno or 0)}") from None


def is_loopback(host: str) -> bool:
    """Whether a socket's address can be reached from this machine alone."""
    return ipaddress.ip_address(host.partition("%")[0]).is_loopback


def page_beside(address: str) -> WebProcess:
    """The page of a broker that starts: its address is taken, and start() begins it.  Raises as http_socket(), and
    ImportError where what the page needs is not installed."""
    check_page_packages("--http")
    return WebProcess(http_socket(address))
