"""The option --http of `kcore web` and `kcore serve`: where the page is."""

from __future__ import annotations

import ipaddress
import os
import socket

from kcore.server.config.listeners import host_and_port
from kcore.server.web_process import WebProcess, check_page_packages
from kcore.tools.command_line import UsageError

DEFAULT_ADDRESS = "127.0.0.1:8080"


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


def page_beside(address: str) -> WebProcess:
    """The page of a broker that starts: its address is taken, and start() begins it.  Raises as http_socket(), and
    ImportError where what the page needs is not installed."""
    check_page_packages("--http")
    return WebProcess(http_socket(address))
