"""`kcore quotas`: list, set and unset the quotas of users, client ids and IP addresses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import click

from kcore.client.quota_client import CLIENT_ID, IP, USER, Entity, QuotaClient, entity_of
from kcore.common.text import bytes_of, counted, json_line, nearest, printable
from kcore.tools.cluster_command import apply_option, cluster_client, cluster_options
from kcore.tools.command_line import OK, Arguments, Decorator, UsageError, protocol_string, protocol_strings, several
from kcore.tools.commands import Group

#: The quotas that Kafka has, and their units.
_BYTE_RATES = ("producer_byte_rate", "consumer_byte_rate")
_CLIENT_QUOTAS = (*_BYTE_RATES, "request_percentage", "controller_mutation_rate")
_IP_QUOTAS = ("connection_creation_rate",)
_WORDS = {USER: "user", CLIENT_ID: "client id", IP: "IP address"}

quotas = Group("quotas", status_1=None)


# -- whose quotas -----------------------------------------------------------------------------------------------------


def _entity_options() -> Decorator:
    """For _entity()."""

    def named(*names: str, metavar: str, text: str) -> Decorator:
        return click.option(*names, type=protocol_string, metavar=metavar, help=text)

    return several(
        named("--user", metavar="USER", text="a user; together with --client: only with this client id"),
        click.option("--user-defaults", is_flag=True, help="users without quotas of their own"),
        named("--client", "--client-id", metavar="ID", text="a client id"),
        click.option("--client-defaults", is_flag=True, help="client ids without quotas of their own"),
        named("--ip", metavar="ADDRESS", text="an IP address"),
        click.option("--ip-defaults", is_flag=True, help="IP addresses without quotas of their own"),
    )


def _entity(args: Arguments) -> Entity:
    """Empty if no option names one.  Raises UsageError."""
    names: dict[str, str | None] = {}
    for kind, option, name, is_default in (
        (USER, "user", args.user, args.user_defaults),
        (CLIENT_ID, "client", args.client, args.client_defaults),
        (IP, "ip", args.ip, args.ip_defaults),
    ):
        if name is not None and is_default:
            raise UsageError(f"--{option}-defaults is not allowed with --{option}")
        if name == "":
            raise UsageError(f"--{option} needs a name; of those without quotas of their own: --{option}-defaults")
        if name is not None or is_default:
            names[kind] = name
    if IP in names and len(names) > 1:
        raise UsageError("--ip goes without --user and --client")
    return entity_of(names)


def _one_entity(args: Arguments) -> Entity:
    """Raises UsageError."""
    entity = _entity(args)
    if not entity:
        raise UsageError("whose quotas? Expected --user, --client, --ip, or --user-defaults and its like")
    return entity


def _entity_text(entity: Entity) -> str:
    return ", ".join(
        f"{_WORDS.get(kind, kind)} {name}" if name is not None else f"every {_WORDS.get(kind, kind)} without its own"
        for kind, name in entity
    )


def _entity_fields(entity: Entity) -> list[dict[str, str | None]]:
    return [{"type": kind.replace("-", "_"), "name": name} for kind, name in entity]


# -- list -------------------------------------------------------------------------------------------------------------


@quotas.subcommand("list", "list the quotas", example="kcore quotas list --user alice")
@_entity_options()
@cluster_options("one JSON object a line for each quota")
def _run_list(args: Arguments) -> int:
    """Raises UsageError, OSError, KafkaError."""
    entity = _entity(args)
    with cluster_client(QuotaClient, args, ends_where_locked=True) as client:
        found = client.quotas(entity)
    for shown, values in found.items():
        if not args.json:
            print(printable(f"{_entity_text(shown)}:"))
        for name, value in values.items():
            if args.json:
                print(json_line({"entity": _entity_fields(shown), "quota": name, "value": _number(value)}))
            else:
                print(printable(f"  {name}={_value_text(name, value)}"))
    if not found and not args.json:
        print(printable(f"no quotas{f' of {_entity_text(entity)}' if entity else ''}"))
    return OK


def _number(value: float | None) -> float | int | None:
    return int(value) if value is not None and value == int(value) else value


def _value_text(name: str, value: float | None) -> str:
    if value is None:
        return "not set"
    unit = f" ({bytes_of(value)} a second)" if name in _BYTE_RATES and value >= 1000 else ""
    return f"{_number(value)}{unit}"


# -- changes ----------------------------------------------------------------------------------------------------------


def _new_value(text: str) -> tuple[str, float]:
    """Raises click.BadParameter."""
    name, equals, number = text.partition("=")
    try:
        value = float(number)
        if not name.strip() or not equals or not 0 < value < float("inf"):
            raise ValueError
    except ValueError:
        raise click.BadParameter(f"{text!r}: expected QUOTA=NUMBER, a number above 0") from None
    return protocol_string(name.strip()), value


def _kafkas_values(text: str) -> list[tuple[str, float]]:
    return [_new_value(part) for part in text.split(",")]


def _quota_names(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    is_ip = ctx.params.get("ip") or ctx.params.get("ip_defaults")
    return [name for name in (_IP_QUOTAS if is_ip else _CLIENT_QUOTAS) if name.startswith(incomplete)]


@quotas.subcommand(
    "set",
    "say what would change; with --apply, set quotas",
    example="kcore quotas set --user alice producer_byte_rate=1048576 --apply",
)
@click.argument(
    "values",
    nargs=-1,
    type=_new_value,
    shell_complete=_quota_names,
    metavar="QUOTA=NUMBER...",
    help=f"{', '.join(_CLIENT_QUOTAS)}; of an IP address {', '.join(_IP_QUOTAS)}",
)
@click.option(
    "--add-config",
    type=_kafkas_values,
    multiple=True,
    metavar="QUOTA=NUMBER[,...]",
    help="the same, as kafka-configs.sh has it",
)
@_entity_options()
@apply_option()
@cluster_options("one JSON object a line for each quota")
def _run_set(args: Arguments) -> int:
    values = [*args.values, *(value for part in args.add_config for value in part)]
    return _change(args, [name for name, _ in values], dict(values))


@quotas.subcommand(
    "unset",
    "say what would change; with --apply, remove quotas",
    example="kcore quotas unset --user alice producer_byte_rate --apply",
)
@click.argument("names", nargs=-1, type=protocol_string, shell_complete=_quota_names, metavar="QUOTA...")
@click.option(
    "--delete-config",
    type=protocol_strings,
    multiple=True,
    metavar="QUOTA[,...]",
    help="the same, as kafka-configs.sh has it",
)
@_entity_options()
@apply_option()
@cluster_options("one JSON object a line for each quota")
def _run_unset(args: Arguments) -> int:
    names = [*args.names, *(name for part in args.delete_config for name in part)]
    return _change(args, names, dict.fromkeys(names))


def _change(args: Arguments, names: Sequence[str], changes: Mapping[str, float | None]) -> int:
    """Raises UsageError, OSError, KafkaError."""
    entity = _one_entity(args)
    _check_names(entity, names)
    with cluster_client(QuotaClient, args) as client:
        before = client.quotas(entity, is_whole=True).get(entity, {})
        needed = {name: value for name, value in changes.items() if before.get(name) != value}
        if needed:
            client.alter_quotas(entity, needed, validate_only=True)
            if args.apply:
                client.alter_quotas(entity, needed)
    if not args.json:
        done = "changed" if args.apply else "would change; --apply changes them"
        print(printable(f"{_entity_text(entity)}: {counted(len(needed), 'quota')} {done}"))
    for name, value in changes.items():
        old = before.get(name)
        if args.json:
            fields: dict[str, Any] = {"entity": _entity_fields(entity), "quota": name, "old_value": _number(old)}
            if value is not None:  # of set
                fields["new_value"] = _number(value)
            print(json_line(fields | {"applied": args.apply and name in needed}))
        elif name in needed:
            print(f"  {name}: {_value_text(name, old)} -> {_value_text(name, value)}")
        else:
            print(f"  {name}: is {_value_text(name, old)}{'' if old is None else ' already'}: nothing to do")
    return OK


def _check_names(entity: Entity, names: Sequence[str]) -> None:
    """Raises UsageError."""
    if not names:
        raise UsageError("nothing to change: expected QUOTA=NUMBER, or for unset QUOTA")
    is_ip = IP in dict(entity)
    known, whose = (_IP_QUOTAS, "an IP address") if is_ip else (_CLIENT_QUOTAS, "users and client ids")
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"the quota {name} is there more than once")
        if name not in known:
            raise UsageError(f"{name!r} is no quota of {whose}: expected {', '.join(known)}{nearest(name, known)}")
