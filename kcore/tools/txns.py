"""`kcore txns`: transactional ids and their transactions, those that are open in partitions, and the abort of one that
hangs there."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import click

from kcore.client.transaction_client import OpenTransaction, TransactionClient, TransactionDescription
from kcore.common.text import counted, date_of, json_line, plain_error, printable
from kcore.common.topic_partition import TopicPartition
from kcore.errors import ApiError, KafkaError
from kcore.tools.cluster_command import (
    apply_option,
    client_and_errors,
    cluster_client,
    cluster_options,
    partitions,
    partitions_word,
    topics_of,
)
from kcore.tools.cluster_names import topic_names, transactional_ids
from kcore.tools.command_line import DAMAGE, OK, USAGE, Arguments, UsageError, protocol_string
from kcore.tools.commands import Group

_STATES = ("Empty", "Ongoing", "PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort")

txns = Group("txns", status_1="a transaction hangs")


def _number(text: str) -> int:
    """Raises click.BadParameter."""
    if text.isdecimal() and int(text) < 1 << 63:
        return int(text)
    raise click.BadParameter(f"{text!r}: expected a whole number, 0 or more")


# -- list -------------------------------------------------------------------------------------------------------------


@txns.subcommand(
    "list", "list the transactional ids and their states", example="kcore txns list --state Ongoing --longer-than 60000"
)
@click.option("--state", type=click.Choice(_STATES), multiple=True, help="only in this state; repeatable")
@click.option(
    "--producer", "--producer-id", type=_number, multiple=True, metavar="ID", help="only of this producer; repeatable"
)
@click.option(
    "--longer-than",
    "--duration-filter",
    type=_number,
    metavar="MS",
    help="only transactions that began more than so many ms ago",
)
@cluster_options("one JSON object a line for each transactional id")
def _run_list(args: Arguments) -> int:
    """0; 2 if a broker could not be asked.  Raises OSError, KafkaError."""
    duration_ms = -1 if args.longer_than is None else args.longer_than
    with client_and_errors(TransactionClient, args, ends_where_locked=True) as (client, errors):
        listed, missing = client.list_transactions(args.state, args.producer, duration_ms)
        for transaction in listed:
            if args.json:
                print(json_line(transaction._asdict()))
            else:
                producer = f"producer {transaction.producer_id}, coordinator {transaction.coordinator}"
                print(printable(f"{transaction.transactional_id}: {transaction.state}, {producer}"))
        if not listed and not missing and not args.json:
            is_filtered = bool(args.state or args.producer) or args.longer_than is not None
            print(f"no transactional ids{' of this kind' if is_filtered else ''}")
        for broker_id, error in missing.items():
            errors.print(f"the transactional ids of broker {broker_id} are missing: {plain_error(error)}")
    return USAGE if missing else OK


# -- describe ---------------------------------------------------------------------------------------------------------


@txns.subcommand(
    "describe",
    "show the producer of a transactional id, and the partitions of its transaction",
    example="kcore txns describe shop",
)
@click.argument(
    "ids",
    nargs=-1,
    required=True,
    type=protocol_string,
    shell_complete=transactional_ids,
    metavar="TRANSACTIONAL-ID...",
)
@cluster_options("one JSON object a line for each transactional id")
def _run_describe(args: Arguments) -> int:
    """0; 2 if one cannot be described.  Raises OSError, KafkaError."""
    status = OK
    with client_and_errors(TransactionClient, args, ends_where_locked=True) as (client, errors):
        for transactional_id in dict.fromkeys(args.ids):
            try:
                described = client.describe_transaction(transactional_id)
            except ApiError as error:
                errors.print(plain_error(error))
                status = USAGE
                continue
            print(json_line(_description_fields(described)) if args.json else _description_text(described))
    return status


def _description_fields(described: TransactionDescription) -> dict[str, Any]:
    return described._asdict() | {"partitions": [tp._asdict() for tp in described.partitions]}


def _description_text(described: TransactionDescription) -> str:
    producer = f"producer {described.producer_id} with epoch {described.producer_epoch}"
    timeout = f"timeout {described.timeout_ms} ms"
    lines = [
        f"{described.transactional_id}: {described.state}, {producer}, {timeout}, coordinator {described.coordinator}"
    ]
    if described.start_ms is not None:
        lines.append(f"  the transaction began {date_of(described.start_ms)}")
    lines += [f"  {tp}" for tp in described.partitions]
    return "\n".join(map(printable, lines))


# -- open -------------------------------------------------------------------------------------------------------------


@txns.subcommand(
    "open",
    "show the transactions that are open in partitions; one hangs if no coordinator will end it",
    example="kcore txns open orders",
)
@click.argument(
    "partitions",
    nargs=-1,
    type=partitions_word,
    shell_complete=topic_names,
    metavar="[TOPIC[:N[,N...]]]...",
    help="partitions; without numbers all of the topic; default: all topics",
)
@cluster_options("one JSON object a line for each transaction")
def _run_open(args: Arguments) -> int:
    """0; 1 if a transaction hangs; 2 if a partition could not be looked at.  Raises UsageError, OSError, KafkaError."""
    with client_and_errors(TransactionClient, args, ends_where_locked=True) as (client, errors):
        cluster = client.describe_cluster(topics_of(args.partitions) or None)
        opened, unseen = client.open_transactions(partitions(args.partitions or cluster.topics, cluster))
        ids = _ids(client, opened)
        for transaction in opened:
            if args.json:
                print(json_line(_open_fields(transaction, ids)))
            else:
                print(printable(_open_text(transaction, ids)))
        if not opened and not args.json:
            print("no transaction is open")
        for tp, error in unseen.items():
            errors.print(f"{tp}: {plain_error(error)}")
    return USAGE if unseen else DAMAGE if any(transaction not in ids for transaction in opened) else OK


def _ids(client: TransactionClient, opened: list[OpenTransaction]) -> Mapping[OpenTransaction, str]:
    """Their transactional ids; those that hang have none, and those that have ended meanwhile are removed."""
    ids = client.coordinated(opened)
    without = [transaction for transaction in opened if transaction not in ids]
    if without:
        # A marker that was written after the first look.
        still_open, _ = client.open_transactions(transaction.topic_partition for transaction in without)
        opened[:] = [transaction for transaction in opened if transaction in ids or transaction in still_open]
    return ids


def _open_fields(transaction: OpenTransaction, ids: Mapping[OpenTransaction, str]) -> dict[str, Any]:
    fields = transaction._asdict()
    fields.pop("topic_partition")
    is_hanging = {"transactional_id": ids.get(transaction), "is_hanging": transaction not in ids}
    return transaction.topic_partition._asdict() | fields | is_hanging


def _open_text(transaction: OpenTransaction, ids: Mapping[OpenTransaction, str]) -> str:
    producer = f"producer {transaction.producer_id} with epoch {transaction.producer_epoch}"
    since = f"last written {date_of(transaction.last_timestamp)}" if transaction.last_timestamp >= 0 else ""
    parts = [f"open since offset {transaction.start_offset}", producer, since]
    text = f"{transaction.topic_partition}: {', '.join(part for part in parts if part)}: "
    if transaction in ids:
        return f"{text}transactional id {ids[transaction]}, whose coordinator ends it"
    return f"{text}hangs, no coordinator will end it"


# -- abort ------------------------------------------------------------------------------------------------------------


@txns.subcommand(
    "abort",
    "say which transaction of a partition would be aborted; with --apply, abort it",
    example="kcore txns abort orders:0 --start-offset 42 --apply",
)
@click.argument(
    "partition", type=partitions_word, shell_complete=topic_names, metavar="TOPIC:N", help="the partition it hangs in"
)
@click.option(
    "--start-offset", type=_number, required=True, metavar="N", help="its first offset, as `kcore txns open` says"
)
@click.option("--force", is_flag=True, help="also one that its coordinator will end: part of it may be committed then")
@apply_option()
@cluster_options("one JSON object")
def _run_abort(args: Arguments) -> int:
    """Raises UsageError, OSError, KafkaError."""
    with cluster_client(TransactionClient, args) as client:
        tps = partitions([args.partition], client.describe_cluster(topics_of([args.partition])))
        if len(tps) != 1 or ":" not in args.partition:
            raise UsageError(f"{args.partition!r}: expected one partition, as {tps[0].topic}:0")
        opened, errors = client.open_transactions(tps)
        for error in errors.values():
            raise error
        transaction = _started_at(tps[0], args.start_offset, opened)
        ids = client.coordinated([transaction])
        if args.apply and transaction in ids and not args.force:
            raise UsageError(
                f"{_open_text(transaction, ids)}: it does not hang. End it by its producer, or by the next one of this "
                "id; --force writes the marker all the same"
            )
        if args.apply:
            _abort(client, transaction)
    if args.json:
        print(json_line(_open_fields(transaction, ids) | {"applied": args.apply}))
    else:
        print(f"{counted(1, 'transaction')} {'aborted' if args.apply else 'would be aborted; --apply aborts it'}")
        print(printable(f"  {_open_text(transaction, ids)}"))
    return OK


def _started_at(tp: TopicPartition, offset: int, opened: Collection[OpenTransaction]) -> OpenTransaction:
    """Raises UsageError."""
    for transaction in opened:
        if transaction.start_offset == offset:
            return transaction
    if not opened:
        raise UsageError(f"no transaction is open in {tp}")
    starts = ", ".join(str(transaction.start_offset) for transaction in opened)
    raise UsageError(f"no open transaction of {tp} begins at offset {offset}; there is one at {starts}")


def _abort(client: TransactionClient, transaction: OpenTransaction) -> None:
    try:
        client.abort_in_partition(transaction)
    except KafkaError as error:
        error.add_note("it may have ended meanwhile: `kcore txns open` says what is open")
        raise
