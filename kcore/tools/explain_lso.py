"""`kcore explain lso`: which transaction holds back the last stable offset; of a running broker, or of a directory."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Collection
from typing import Any, NamedTuple

import click

from kcore.client.monitor import MonitorError
from kcore.common.topic_names import TRANSACTION_STATE_TOPIC
from kcore.common.topic_partition import TopicPartition
from kcore.errors import CorruptMessage
from kcore.inspect.directories import data_dir_of
from kcore.inspect.log_files import is_partition_dir, partition_dirs
from kcore.log.lso_explanation import HeldTransaction, LsoExplanation, explain_lso
from kcore.log.open_log import open_log
from kcore.tools.cluster_names import topic_argument
from kcore.tools.command_line import DIRECTORY, OK, Arguments, UsageError, json_option
from kcore.tools.commands import command
from kcore.tools.internal_topics import decode_transaction_record
from kcore.tools.monitored_broker import MonitoredBroker, broker_options


class _Producer(NamedTuple):
    transactional_id: str
    timeout_ms: int


@command(example="kcore explain lso orders 0")
@topic_argument("not needed where --dir is the directory of one partition", required=False)
@click.argument("partition", type=int, required=False, default=0, metavar="[PARTITION]", help="default 0")
@click.option(
    "--dir",
    "directory",
    type=DIRECTORY,
    metavar="DIR",
    help="read the files of a partition's directory, or of TOPIC in a data directory; asks no broker",
)
@broker_options("the partition's leader")
@json_option("one JSON object")
def run(args: Arguments) -> int:
    """Raises UsageError, OSError, KafkaError."""
    if args.directory is not None:
        if args.data is not None or args.bootstrap.is_given or args.broker is not None:
            raise UsageError("--dir goes without --data, --bootstrap and --broker: it asks no broker")
        directory = _partition_dir(args)
        with open_log(directory) as log:
            explained = explain_lso(log)
        data_dir = data_dir_of(directory)
    elif args.topic is None:
        raise UsageError("expected a TOPIC, or --dir DIR")
    else:
        try:
            broker = MonitoredBroker(args, TopicPartition(args.topic, args.partition))
            explained = _decoded(broker.ask("explain_lso", topic=args.topic, partition=args.partition)["value"])
        except MonitorError as error:
            error.add_note("--dir DIR reads the partition's files, Kafka's too")
            raise
        data_dir = broker.data_dir
    explained = _with_transactional_ids(explained, data_dir)
    print(json.dumps(dataclasses.asdict(explained), indent=1) if args.json else explained)
    return OK


def _partition_dir(args: Arguments) -> str:
    """Raises UsageError."""
    directory: str = args.directory
    if args.topic is not None:
        return os.path.join(directory, str(TopicPartition(args.topic, args.partition)))
    if not is_partition_dir(directory):
        raise UsageError(f"{directory} is not the directory of a partition: name a TOPIC too")
    return directory


def _decoded(value: dict[str, Any]) -> LsoExplanation:
    """From what the broker has sent as JSON."""
    transactions = tuple(HeldTransaction(**txn) for txn in value["transactions"])
    return LsoExplanation(**value | {"transactions": transactions})


def _with_transactional_ids(explained: LsoExplanation, data_dir: str) -> LsoExplanation:
    """As far as the partitions of __transaction_state in this data directory have them."""
    producers = _transactional_producers(data_dir, {txn.producer_id for txn in explained.transactions})
    transactions = tuple(
        dataclasses.replace(txn, **producers[txn.producer_id]._asdict()) if txn.producer_id in producers else txn
        for txn in explained.transactions
    )
    return dataclasses.replace(explained, transactions=transactions)


def _transactional_producers(data_dir: str, producer_ids: Collection[int]) -> dict[int, _Producer]:
    """By producer id.  A log that cannot be read to its end gives what is before the damage."""
    found: dict[int, _Producer] = {}
    if not producer_ids:
        return found
    for directory in partition_dirs(data_dir):
        if not os.path.basename(directory).startswith(f"{TRANSACTION_STATE_TOPIC}-"):
            continue
        with open_log(directory) as log:
            for record in log.records(on_error="stop"):
                try:
                    key, value = decode_transaction_record(_bytes(record.key), _bytes(record.value))
                except CorruptMessage:  # of a later version, for one
                    continue
                if key is None or value is None or "producerId" not in value["data"]:
                    continue
                data = value["data"]
                if data["producerId"] in producer_ids:
                    producer = _Producer(key["data"]["transactionalId"], data["transactionTimeoutMs"])
                    found[data["producerId"]] = producer
    return found


def _bytes(data: memoryview | bytes | None) -> bytes | None:
    return None if data is None else bytes(data)
