"""`kcore serve`: one broker as a process."""

from __future__ import annotations

import gc
import logging
import os
import shlex
import signal
import sys
import threading
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any

import click

from kcore.common.text import plain_error
from kcore.errors import InvalidConfig, KafkaError, StartCancelled
from kcore.server.broker import Broker
from kcore.server.config.kafka_config import KafkaConfig
from kcore.server.config.listeners import addresses_elsewhere, advertised, bracketed
from kcore.tools.command_line import DIRECTORY, FILE, Arguments, at_most
from kcore.tools.commands import command
from kcore.tools.hints import client_hint, script, short
from kcore.tools.parent_process import end_with_parent
from kcore.tools.serve_settings import given_settings, with_source

#: How long a thread that computes keeps the GIL from one that wants it.  Python's default of 5 ms is long for a broker
#: whose background threads (flush, checkpoints, retention) share the GIL with its requests.
SWITCH_INTERVAL_S = 0.001

#: Allocations between two passes of the garbage collector over the youngest objects, and passes of one generation to
#: one of the next.  With Python's 700, 10, 10 a Fetch of 100,000 partitions, whose objects are all alive, meets a
#: thousand passes, ten of which walk over all of them and take 30 ms and more each, in which no other thread runs.
GC_THRESHOLD = (10_000, 50, 10)

DEFAULT_PORT = 9092

#: Of one machine: each is a process of some 100 MB, and talks to all others.
_MOST_BROKERS = 100

#: How often a start looks for a signal that ends it.
_SIGNAL_POLL_S = 0.25

_LOG_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")


def _override(text: str) -> str:
    """KEY=VALUE as it is; raises click.BadParameter."""
    key, equals, _ = text.partition("=")
    if not equals or not key.strip():
        raise click.BadParameter(f"{text!r}: expected KEY=VALUE, as num.partitions=3")
    return text


def _broker_count(text: str) -> int:
    """Raises click.BadParameter."""
    return at_most(_MOST_BROKERS, text)


@command()
@click.option(
    "--data", type=DIRECTORY, metavar="DIR", help="data directory (Kafka's log.dirs); made if it is not there"
)
@click.option("--port", type=int, metavar="N", help=f"port, 0 for a free one (default {DEFAULT_PORT})")
@click.option("--host", metavar="ADDRESS", help="address to listen on (default 127.0.0.1)")
@click.option("--config", type=FILE, metavar="FILE", help="a server.properties, or the same as TOML (FILE.toml)")
@click.option(
    "--environment",
    is_flag=True,
    help="take settings from variables too: KAFKA_LOG_DIRS is log.dirs, as in images of Kafka; they go before the file",
)
@click.option("--id", type=int, metavar="N", help="this broker's id (broker.id)")
@click.option(
    "--store",
    metavar="ADDRESS",
    help="be a broker of a cluster, whose brokers have this store in common: sqlite:FILE on one machine, "
    "zookeeper://HOST:PORT[,HOST:PORT][/CHROOT] on several; start each with its own --id, --port and --data, and the "
    "same --store",
)
@click.option(
    "--brokers",
    type=_broker_count,
    metavar="N",
    help=f"serve a cluster of N brokers, at most {_MOST_BROKERS}, each a process of its own: ids 0, 1, ..., data in "
    "DIR/0, DIR/1, ..., ports from --port on; without --store they coordinate through a file in DIR",
)
@click.option(
    "--monitoring",
    metavar="HOST:PORT",
    help="answer GET /metrics (for Prometheus), /healthz and /readyz there; with --brokers N, N ports from PORT on",
)
@click.option("--http", metavar="HOST:PORT", help="have a `kcore web` process serve a page there")
# Of serve_cluster: the process to end with.
@click.option("--parent", type=int, hidden=True)
@click.option("--hints", is_flag=True, help="print commands to try next, with the port really taken")
@click.option(
    "-o",
    "overrides",
    type=_override,
    multiple=True,
    metavar="KEY=VALUE",
    help="a broker setting, by Kafka's name; repeatable",
)
def run(args: Arguments) -> int:
    """Serve until SIGINT or SIGTERM, which also end a start that waits.  0 after a clean stop, 1 when the last data
    directory failed, 2 when the broker cannot start.  With --brokers what serve_cluster.run() returns."""
    if args.brokers is not None:
        from kcore.tools import serve_cluster  # a broker alone calls no other

        args.port = DEFAULT_PORT if args.port is None else args.port
        return serve_cluster.run(args)
    # The main thread waits for these signals.  They are blocked before other threads start, so no other gets them.
    is_hangup_ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN  # by nohup
    signals = {signal.SIGINT, signal.SIGTERM, *([signal.SIGHUP] if args.parent is not None else [])}
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    try:
        return _serve(args, signals, is_hangup_ignored)
    finally:
        # For a caller in this process: what comes after it, or a child of it, is not to have the signals blocked.
        while signal.sigtimedwait(signals, 0) is not None:
            pass
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _serve(args: Arguments, signals: set[signal.Signals], is_hangup_ignored: bool) -> int:
    page = None
    try:
        if args.http is not None:
            from kcore.tools.http_option import page_beside  # a broker alone starts no other process

            page = page_beside(args.http)
        if args.parent is not None:
            end_with_parent(args.parent)
        logging.basicConfig(
            stream=sys.stderr, level=_log_level(), format="%(asctime)s %(levelname)s %(name)s: %(message)s"
        )
        broker = _broker(args)
        failures: list[OSError] = []

        def no_data_dir_left(error: OSError) -> None:
            failures.append(error)
            os.kill(os.getpid(), signal.SIGTERM)

        broker.on_fatal_error = no_data_dir_left
        with _cancelled_by(broker, signals - {signal.SIGHUP}):
            broker.start()
        if page is not None:
            try:
                page.start(broker.bootstrap_servers)
            except OSError:
                broker.stop()
                raise
    except StartCancelled as error:
        print(f"kcore: stopped: {error}", flush=True)
        return 0
    except (KafkaError, OSError, ValueError) as error:
        print(f"kcore serve: {plain_error(error)}", file=sys.stderr)
        return 2
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    # The objects that exist now stay; freeze() keeps the collector from scanning them again.
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLD)
    bound = broker.running.server.listeners
    elsewhere = addresses_elsewhere(advertised(broker.broker_id, broker.config, bound), bound)
    advertised_as = f", advertised as {elsewhere}" if elsewhere else ""
    data_dirs = ",".join(broker.running.base.working_dirs)
    print(f"kcore: serving {data_dirs} on {broker.bootstrap_servers}{advertised_as}", flush=True)
    if broker.monitoring_url is not None:
        print(f"kcore: {broker.monitoring_url}/metrics, /healthz, /readyz", flush=True)
    if page is not None:
        print(f"kcore: {page.url}", flush=True)
    if args.hints:
        print("Ctrl-C stops it; next, in another terminal:", *_hints(broker, args), sep="\n  ", flush=True)
    while signal.sigwait(signals) == signal.SIGHUP and is_hangup_ignored and os.getppid() == args.parent:
        pass  # a terminal's; that of the parent's end comes when it is not the parent any more
    # A second signal ends a stop that hangs.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGTERM})
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    if page is not None:
        page.stop()
    broker.stop()
    print("kcore: stopped", flush=True)
    return 1 if failures else 0


@contextmanager
def _cancelled_by(broker: Broker, signals: Collection[signal.Signals]) -> Iterator[None]:
    """While the block runs, one of these blocked signals ends a start that waits.  It stays pending."""
    started = threading.Event()

    def watch() -> None:
        while not started.wait(_SIGNAL_POLL_S):
            if signal.sigpending() & set(signals):
                broker.cancel_start()

    threading.Thread(target=watch, name="kcore-cancel-start", daemon=True).start()
    try:
        yield
    finally:
        started.set()


def _log_level() -> str:
    level = os.environ.get("KCORE_LOG_LEVEL", "INFO")
    if level.upper() not in _LOG_LEVELS:
        raise ValueError(f"KCORE_LOG_LEVEL={level}: expected one of {', '.join(_LOG_LEVELS)}")
    return level.upper()


def _hints(broker: Broker, args: Arguments) -> list[str]:
    """Commands for who sees a broker for the first time."""
    data = short(broker.data_dir or "")
    kcore = shlex.quote(script("kcore"))
    another = []
    if args.store:
        others = f"--data {shlex.quote(data.rstrip('/'))}-{broker.broker_id + 1} --store {shlex.quote(args.store)}"
        another.append(
            f"{kcore} serve --id {broker.broker_id + 1} --port {broker.port + 1} {others}  # one more broker"
        )
    return [
        *another,
        client_hint(broker.bootstrap_servers),
        f"{kcore} dump {shlex.quote(os.path.join(data, 'greetings-0'))}  # what is in the files of a topic `greetings`",
        f"{kcore} verify {shlex.quote(data)}  # every CRC, every index",
    ]


def _broker(args: Arguments) -> Broker:
    try:
        return _configured_broker(args)
    except InvalidConfig as error:
        raise with_source(error, args) from None


def _configured_broker(args: Arguments) -> Broker:
    properties: dict[str, Any] = dict(given_settings(args))
    if args.data:
        # --data wins over the file.  One that -o sets too is a contradiction, which Broker refuses.
        properties.pop("log.dirs", None)
        properties.pop("log.dir", None)
    for override in args.overrides:
        key, _, value = override.partition("=")
        properties[key.strip()] = value.strip()
    if args.monitoring is not None:
        properties["kcore.monitoring.address"] = args.monitoring
    if args.id is not None:
        if "node.id" in properties:
            raise ValueError("node.id and --id are both given: give one")
        properties["broker.id"] = args.id
    config = KafkaConfig({name: value for name, value in properties.items() if name != "zookeeper.connect"})
    listeners = config.listeners
    host, port = (listeners[0].host, listeners[0].port) if listeners else ("127.0.0.1", DEFAULT_PORT)
    # What the command line says of the (first) listener wins over the file.
    host = args.host if args.host is not None else host
    port = args.port if args.port is not None else port
    if listeners:
        listeners[0] = listeners[0]._replace(host=host, port=port)
        properties["listeners"] = ",".join(f"{item.name}://{bracketed(item.host, item.port)}" for item in listeners)
    if not args.data and not config.data_dirs:
        raise ValueError("which data directory? Give --data DIR, or log.dirs in the configuration")
    if args.store is not None and config.configured_broker_id is None:
        raise ValueError("which broker of the cluster? Give --id N")
    _print_unused_store(properties.pop("zookeeper.connect", None), args.store, args.data or config.data_dirs[0])
    return Broker(args.data, port, host, store=args.store, **properties)


def _print_unused_store(zookeeper_connect: str | None, store: str | None, data_dir: str) -> None:
    """Say which store the broker uses, if that is not the ZooKeeper of its settings file: only --store has it join that
    cluster, which may be one in production."""
    asked = f"zookeeper://{zookeeper_connect}"
    if zookeeper_connect is not None and store != asked:
        used = f"it is alone, with its store in {data_dir}" if store is None else f"its store is {store}"
        text = f"zookeeper.connect is not used: {used}; a broker of that cluster has --store {asked}"
        print(f"kcore: {text}", file=sys.stderr, flush=True)
