"""`kcore serve`: one broker as a process."""

from __future__ import annotations

import argparse
import gc
import logging
import os
import signal
import sys
from typing import Any

from kcore.errors import KafkaError
from kcore.server.broker import Broker
from kcore.server.kafka_config import KafkaConfig, read_properties

#: How long a thread that computes keeps the GIL from one that wants it.  Python's default of 5 ms is long for a broker
#: whose background threads (flush, checkpoints, retention) share the GIL with its requests.
SWITCH_INTERVAL_S = 0.001

DEFAULT_PORT = 9092


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--data", metavar="DIR", help="data directory (Kafka's log.dirs); made if it is not there")
    parser.add_argument("--port", type=int, metavar="N", help=f"port, 0 for a free one (default {DEFAULT_PORT})")
    parser.add_argument("--host", metavar="ADDRESS", help="address to listen on (default 127.0.0.1)")
    parser.add_argument("--config", metavar="FILE", help="a server.properties")
    parser.add_argument(
        "-o",
        dest="overrides",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a broker setting, by Kafka's name",
    )


def run(args: argparse.Namespace) -> int:
    """Serve until SIGINT or SIGTERM.  0 after a clean stop, 1 when the last data directory failed, 2 when the broker
    cannot start."""
    # The main thread does nothing but wait for them; blocked before any other thread starts, none of those gets them.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    logging.basicConfig(
        stream=sys.stderr,
        level=os.environ.get("KCORE_LOG_LEVEL", "INFO").upper(),
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
    )
    try:
        broker = _broker(args)
        failures: list[OSError] = []

        def no_data_dir_left(error: OSError) -> None:
            failures.append(error)
            os.kill(os.getpid(), signal.SIGTERM)

        broker.on_fatal_error = no_data_dir_left
        broker.start()
    except (KafkaError, OSError, ValueError) as error:
        print(f"kcore serve: {error}", file=sys.stderr)
        return 2
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    # What exists now stays; the collector need not look at it again with every generation.
    gc.collect()
    gc.freeze()
    print(f"kcore: serving {broker.data_dir} on {broker.bootstrap_servers}", flush=True)
    signal.sigwait({signal.SIGINT, signal.SIGTERM})
    # A second signal ends a stop that hangs.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGTERM})
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    broker.stop()
    print("kcore: stopped", flush=True)
    return 1 if failures else 0


def _broker(args: argparse.Namespace) -> Broker:
    properties: dict[str, Any] = read_properties(args.config) if args.config else {}
    for override in args.overrides:
        key, separator, value = override.partition("=")
        if not separator:
            raise ValueError(f"-o {override}: expected KEY=VALUE")
        properties[key.strip()] = value.strip()
    config = KafkaConfig(properties)
    host, port = config.listener or ("127.0.0.1", DEFAULT_PORT)
    # What the command line says wins over the file.
    properties.pop("listeners", None)
    data = args.data or next(iter(config.data_dirs), None)
    if data is None:
        raise ValueError("which data directory? Give --data DIR, or log.dirs in the configuration")
    return Broker(
        args.data,
        args.port if args.port is not None else port,
        args.host if args.host is not None else host,
        **properties,
    )
