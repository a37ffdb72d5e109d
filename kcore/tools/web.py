"""`kcore web`: a page about a cluster or data directories."""

from __future__ import annotations

import gc
import os
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from kcore.common.optional_packages import missing_package
from kcore.common.random_source import SYSTEM_RANDOM
from kcore.inspect import log_files
from kcore.server.web_process import page_url
from kcore.tools.bootstrap import bootstrap_option
from kcore.tools.command_line import DIRECTORY, OK, Arguments, addresses
from kcore.tools.commands import command
from kcore.tools.http_option import DEFAULT_ADDRESS, http_socket, is_loopback
from kcore.tools.parent_process import end_with_parent
from kcore.tools.stop_signals import stop_on_signal

if TYPE_CHECKING:
    import uvicorn

#: A page is rendered while the sampler's thread reads the metadata of all topics, which takes half a second of Python
#: for 40,000 partitions.
SWITCH_INTERVAL_S = 0.001
#: As that of `kcore serve`: the metadata are 100,000 objects that are all alive.
GC_THRESHOLD = (10_000, 50, 10)
_TOKEN_BITS = 256
#: How long requests that are being answered may take when the page ends.
_LAST_REQUESTS_S = 3


@command(
    help="Serve a page about a cluster of Kafka or kcore (brokers, topics, partitions, groups, messages), about data "
    "directories (segments, damage, gaps, messages), or both.  It changes nothing unless --http-admin is given."
)
@click.argument(
    "directories", nargs=-1, type=DIRECTORY, metavar="[DIR...]", help="a data directory; its broker may run or not"
)
@bootstrap_option()
@click.option(
    "--http",
    default=DEFAULT_ADDRESS,
    metavar="HOST:PORT",
    help=f"where the page is (default {DEFAULT_ADDRESS}); it asks for no password: who reaches it reads all",
)
@click.option(
    "--http-name",
    multiple=True,
    metavar="NAME",
    help="another name of this machine that browsers use for the page; repeatable",
)
@click.option("--http-admin", is_flag=True, help="let the page create, delete and elect")
# Of `kcore serve --http`: the process to end with, and the socket to serve.
@click.option("--parent", type=int, hidden=True)
@click.option("--http-socket", type=int, hidden=True)
def run(args: Arguments) -> int:
    """Serve until SIGINT or SIGTERM: 0.  Raises UsageError, OSError, ImportError."""
    try:
        import uvicorn

        from kcore.web.app import make_app
        from kcore.web.directories import log_names
        from kcore.web.site import Settings, Site
    except ImportError as error:
        raise missing_package("kcore web", "web", error) from None
    for directory in args.directories:
        # A wrong path is an error now, not on each page.  A data directory may be empty.
        if not log_names(directory) and log_files.inner_data_dirs(directory):
            raise log_files.no_partitions(directory)
    asks_cluster = args.bootstrap.is_given or not args.directories
    bootstrap = addresses(args.bootstrap) if asks_cluster else []
    listener = http_socket(args.http) if args.http_socket is None else socket.socket(fileno=args.http_socket)
    host, port = listener.getsockname()[:2]
    site = Site(
        Settings(bootstrap, args.directories, args.http_admin, host, args.http_name),
        f"{SYSTEM_RANDOM.getrandbits(_TOKEN_BITS):x}",
    )
    config = uvicorn.Config(
        make_app(site), log_level="warning", access_log=False, timeout_graceful_shutdown=_LAST_REQUESTS_S
    )
    if not is_loopback(host):
        may = "read and delete" if args.http_admin else "read"
        text = f"everybody who reaches {host}:{port} can {may} all topics: the page asks for no password"
        print(f"kcore: {text}", file=sys.stderr)
    if args.http_socket is None:
        print(f"kcore: {page_url(listener)}", flush=True)

    class Server(uvicorn.Server):
        @contextmanager
        def capture_signals(self) -> Iterator[None]:
            """Nothing: stop_on_signal() is around all of it."""
            yield

    sys.setswitchinterval(SWITCH_INTERVAL_S)
    gc.set_threshold(*GC_THRESHOLD)
    _serve(Server(config), listener, args.parent)
    return OK


def _serve(server: uvicorn.Server, listener: socket.socket, parent_pid: int | None) -> None:
    def stop() -> None:
        server.should_exit = True

    if parent_pid is not None:
        # The parent's end comes as SIGHUP; so does that of a terminal, which is for the parent.
        signal.signal(signal.SIGHUP, lambda *_: stop() if os.getppid() != parent_pid else None)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGHUP})
        end_with_parent(parent_pid)
    with stop_on_signal(stop):
        server.run(sockets=[listener])
