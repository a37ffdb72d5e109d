"""`kcore metrics`: what a running broker of this machine measures, under Kafka's names."""

from __future__ import annotations

import json
import sys
import time

import click

from kcore.client.monitor import MonitorError
from kcore.common.metrics import Attributes, rates
from kcore.tools.command_line import OK, Arguments, json_option, positive
from kcore.tools.commands import command
from kcore.tools.monitored_broker import MonitoredBroker, broker_options


@command()
@broker_options("the first one of --bootstrap that answers")
@click.option("--match", metavar="TEXT", default="", help="only metrics with TEXT in their name")
@click.option("--rates", type=positive, metavar="SECONDS", help="what happened per second, counted for that long")
@json_option("one JSON object")
def run(args: Arguments) -> int:
    """Print the metrics; 0.  Raises MonitorError, UsageError, OSError."""
    broker = MonitoredBroker(args)
    before = _read(broker, args.match)
    if args.rates is None:
        if args.json:
            print(json.dumps(before, indent=1))
        else:
            for name, attributes in before.items():
                print(name, *(f"{key}={_number(value)}" for key, value in attributes.items()), sep="  ")
        return OK
    start = time.monotonic()
    time.sleep(args.rates)
    after = _read(broker, args.match)
    per_second = rates(before, after, time.monotonic() - start)
    if args.json:
        print(json.dumps(per_second, indent=1))
    else:
        counted = {name: rate for name, rate in per_second.items() if rate}
        for name, rate in counted.items():
            print(f"{name}  {_number(rate)}/s")
        if not counted:
            print(f"kcore: nothing was counted in {args.rates} s", file=sys.stderr)
    return OK


def _read(broker: MonitoredBroker, match: str) -> dict[str, Attributes]:
    metrics: dict[str, Attributes] = broker.ask("metrics")
    chosen = {name: attributes for name, attributes in metrics.items() if match in name}
    if not chosen:
        raise MonitorError(f"none of the broker's {len(metrics)} metrics has {match!r} in its name")
    return chosen


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else f"{value:.4g}"
