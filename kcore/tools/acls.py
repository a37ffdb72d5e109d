"""`kcore acls`: list, add and remove the ACLs of a running cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from enum import IntEnum
from itertools import groupby, product
from typing import Any, TypeVar

import click

from kcore.client.acl_client import ANY, Acl, AclClient, AclFilter
from kcore.common.text import counted, json_line, nearest, printable
from kcore.errors import ApiError, SecurityDisabled
from kcore.security.acl import (
    CLUSTER_NAME,
    SUPPORTED_OPERATIONS,
    WILDCARD,
    AclOperation,
    AclPermissionType,
    PatternType,
    ResourceType,
)
from kcore.tools.cluster_command import apply_option, cluster_client, cluster_options, error_text
from kcore.tools.cluster_names import group_ids, topic_names
from kcore.tools.command_line import DAMAGE, OK, Arguments, Decorator, UsageError, protocol_string, several
from kcore.tools.commands import Group

_Code = TypeVar("_Code", bound=IntEnum)

_ALLOW, _DENY = AclPermissionType.ALLOW, AclPermissionType.DENY
_TOPIC, _GROUP, _CLUSTER = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER
_NOTE = (
    "a broker with ACLs has authorizer.class.name: kcore.StoredAclAuthorizer in kcore's, "
    "org.apache.kafka.metadata.authorizer.StandardAuthorizer in Kafka's"
)
#: What a producer and a consumer need, as kafka-acls.sh has it.
_PRODUCER = {
    _TOPIC: (AclOperation.WRITE, AclOperation.DESCRIBE, AclOperation.CREATE),
    ResourceType.TRANSACTIONAL_ID: (AclOperation.WRITE, AclOperation.DESCRIBE),
}
_CONSUMER = {_TOPIC: (AclOperation.READ, AclOperation.DESCRIBE), _GROUP: (AclOperation.READ,)}

acls = Group("acls", status_1="an ACL was not added, or not removed")


# -- types of values --------------------------------------------------------------------------------------------------


def _name_of(code: IntEnum | int, kind: type[IntEnum]) -> str:
    """ "describe_configs"; a code that later versions have stays a number."""
    try:
        return kind(code).name.lower()
    except ValueError:
        return str(int(code))


def _one_of(kind: type[_Code], *, without: Iterable[IntEnum] = ()) -> Callable[[str], _Code]:
    """By its name, as describe_configs, describe-configs or DescribeConfigs."""
    names = {code.name.replace("_", "").lower(): code for code in kind if code and code not in without}

    def parse(text: str) -> _Code:
        word = text.replace("_", "").replace("-", "").lower()
        if word in names:
            return names[word]
        known = [code.name.lower() for code in names.values()]
        raise click.BadParameter(f"{text!r}: expected {', '.join(known)}{nearest(text.lower(), known)}")

    return parse


def _principal(text: str) -> str:
    """Raises click.BadParameter."""
    kind, colon, name = protocol_string(text).partition(":")
    if not kind or not colon or not name:
        raise click.BadParameter(f"{text!r}: expected TYPE:NAME, as User:alice, or User:* for everybody")
    return text


def _principal_options() -> Decorator:
    def option(*names: str, metavar: str, kind: Callable[[str], Any], text: str | None = None) -> Decorator:
        return click.option(*names, multiple=True, type=kind, metavar=metavar, help=text, hidden=text is None)

    return several(
        option("--principal", kind=_principal, metavar="TYPE:NAME", text="as User:alice; repeatable"),
        option(
            "--allow-principal", kind=_principal, metavar="TYPE:NAME", text="the same, of ACLs that allow something"
        ),
        option("--deny-principal", kind=_principal, metavar="TYPE:NAME", text="the same, of ACLs that deny something"),
        option("--host", kind=protocol_string, metavar="ADDRESS", text="an IP address; repeatable"),
        option("--allow-host", kind=protocol_string, metavar="ADDRESS"),
        option("--deny-host", kind=protocol_string, metavar="ADDRESS"),
        option(
            "--operation",
            kind=_one_of(AclOperation, without=(AclOperation.ANY,)),
            metavar="NAME",
            text="read, write, create, delete, alter, describe, describe_configs, alter_configs, cluster_action, "
            "idempotent_write, create_tokens, describe_tokens or all; repeatable",
        ),
    )


def _resource_options(default_pattern: str, pattern: Callable[[str], PatternType]) -> Decorator:
    def option(name: str, metavar: str, **settings: Any) -> Decorator:
        return click.option(name, multiple=True, type=protocol_string, metavar=metavar, **settings)

    return several(
        option("--topic", "TOPIC", shell_complete=topic_names, help="* for all; repeatable, as the next ones"),
        option("--group", "GROUP", shell_complete=group_ids),
        option("--transactional-id", "ID"),
        option("--delegation-token", "ID"),
        option("--user-principal", "USER"),
        click.option("--cluster", is_flag=True, help="the cluster itself"),
        click.option(
            "--pattern",
            "--resource-pattern-type",
            type=pattern,
            metavar="TYPE",
            help=f"how the name is compared; default: {default_pattern}",
        ),
    )


def _resources(args: Arguments) -> list[tuple[ResourceType, str]]:
    named = {
        _TOPIC: args.topic,
        _GROUP: args.group,
        _CLUSTER: [CLUSTER_NAME] if args.cluster else [],
        ResourceType.TRANSACTIONAL_ID: args.transactional_id,
        ResourceType.DELEGATION_TOKEN: args.delegation_token,
        ResourceType.USER: args.user_principal,
    }
    return [(kind, name) for kind, names in named.items() for name in names]


@contextmanager
def _client(args: Arguments, *, ends_where_locked: bool = False) -> Iterator[AclClient]:
    try:
        with cluster_client(AclClient, args, ends_where_locked=ends_where_locked) as client:
            yield client
    except SecurityDisabled as error:
        error.add_note(_NOTE)
        raise


# -- list -------------------------------------------------------------------------------------------------------------


def _filters(args: Arguments, default_pattern: PatternType) -> list[AclFilter]:
    """Any one of them is enough for an ACL."""
    permission = args.permission or ANY
    hosts = {permission: args.host, _ALLOW: args.host + args.allow_host, _DENY: args.host + args.deny_host}
    whom = [(principal, permission) for principal in args.principal]
    whom += [(principal, _ALLOW) for principal in args.allow_principal]
    whom += [(principal, _DENY) for principal in args.deny_principal]
    if not whom:
        whom = [(None, permission)]
        hosts[permission] = args.host + args.allow_host + args.deny_host
    resources: list[tuple[int, str | None, int]] = [
        (kind, name, args.pattern or default_pattern) for kind, name in _resources(args)
    ]
    return [
        AclFilter(*resource, principal, host, operation, code)
        for resource in resources or [(ANY, None, args.pattern or ANY)]
        for principal, code in whom
        for host, operation in product(hosts[code] or [None], args.operation or [ANY])
    ]


def _found(client: AclClient, filters: Iterable[AclFilter]) -> list[Acl]:
    return sorted({acl for wanted in filters for acl in client.acls(wanted)})


def _permission_option() -> Decorator:
    return click.option(
        "--permission",
        type=_one_of(AclPermissionType, without=(AclPermissionType.ANY,)),
        metavar="TYPE",
        help="allow or deny",
    )


@acls.subcommand("list", "list the ACLs", example="kcore acls list --topic orders")
@_principal_options()
@_permission_option()
@_resource_options("match, all that apply to the name", _one_of(PatternType))
@cluster_options("one JSON object a line for each ACL")
def _run_list(args: Arguments) -> int:
    with _client(args, ends_where_locked=True) as client:
        found = _found(client, _filters(args, PatternType.MATCH))
    if args.json:
        for acl in found:
            print(json_line(_fields(acl)))
    elif not found:
        print("no ACLs")
    else:
        _print_by_resource(dict.fromkeys(found, ""))
    return OK


# -- add --------------------------------------------------------------------------------------------------------------


@acls.subcommand(
    "add",
    "say which ACLs would be added; with --apply, add them",
    example="kcore acls add --principal User:alice --operation read --topic orders --apply",
)
@_principal_options()
@click.option("--producer", is_flag=True, help="the operations that a producer needs of topics and transactional ids")
@click.option("--consumer", is_flag=True, help="the operations that a consumer needs of topics and groups")
@_resource_options(
    "literal; prefixed: all that begin with the name",
    _one_of(PatternType, without=(PatternType.ANY, PatternType.MATCH)),
)
@apply_option()
@cluster_options("one JSON object a line for each ACL")
def _run_add(args: Arguments) -> int:
    """0; 1 if a broker refused one.  Raises UsageError, OSError, KafkaError."""
    wanted = _new_acls(args)
    with _client(args) as client:
        there = {*client.acls(AclFilter())}
        new = [acl for acl in wanted if acl not in there]
        errors = client.create_acls(new) if args.apply and new else {}
    done = "added" if args.apply else "would be added; --apply adds them"
    return _show_changes(args, wanted, new, errors, done, "is there already")


def _new_acls(args: Arguments) -> list[Acl]:
    """Raises UsageError."""
    whom = [(principal, _ALLOW, args.host + args.allow_host) for principal in args.principal + args.allow_principal]
    whom += [(principal, _DENY, args.host + args.deny_host) for principal in args.deny_principal]
    if not whom:
        raise UsageError("for whom? Expected --principal (or --allow-principal), or --deny-principal")
    if not _resources(args):
        raise UsageError("of what? Expected --topic, --group, --cluster, --transactional-id and so on")
    if bool(args.operation) == (args.producer or args.consumer):
        raise UsageError("what may they do? Expected either --operation, or --producer or --consumer")
    pattern = args.pattern or PatternType.LITERAL
    return sorted(
        {
            Acl(
                kind, name, PatternType.LITERAL if kind is _CLUSTER else pattern, principal, host, operation, permission
            )
            for kind, name in _resources(args)
            for operation in _operations(args, kind)
            for principal, permission, hosts in whom
            for host in hosts or [WILDCARD]
        }
    )


def _operations(args: Arguments, kind: ResourceType) -> Iterable[AclOperation]:
    """What may be done with resources of this type.  Raises UsageError for what Kafka cannot do with them."""
    if not args.operation:
        needed = [
            *(_PRODUCER.get(kind, ()) if args.producer else ()),
            *(_CONSUMER.get(kind, ()) if args.consumer else ()),
        ]
        if not needed:
            raise UsageError(f"--producer and --consumer need nothing of a {_type_text(kind)}: give --operation")
        return needed
    supported = SUPPORTED_OPERATIONS[kind]
    for operation in args.operation:
        if operation is not AclOperation.ALL and operation not in supported:
            names = ", ".join(code.name.lower() for code in (*supported, AclOperation.ALL))
            raise UsageError(f"a {_type_text(kind)} has no operation {operation.name.lower()}; it has {names}")
    operations: list[AclOperation] = args.operation
    return operations


# -- remove -----------------------------------------------------------------------------------------------------------


@acls.subcommand(
    "remove",
    "say which ACLs would be removed; with --apply, remove them",
    example="kcore acls remove --principal User:alice --topic orders --apply",
)
@_principal_options()
@_permission_option()
@_resource_options("literal", _one_of(PatternType))
@apply_option()
@cluster_options("one JSON object a line for each ACL")
def _run_remove(args: Arguments) -> int:
    """0; 1 if a broker refused one.  Raises UsageError, OSError, KafkaError."""
    filters = _filters(args, PatternType.LITERAL)
    if all(wanted._replace(pattern_type=ANY) == AclFilter() for wanted in filters):
        raise UsageError("this would remove all ACLs: say which, by --principal, --topic and so on; `kcore acls list`")
    with _client(args) as client:
        found = _found(client, filters)
        errors = client.delete_acls(found) if args.apply and found else {}
    done = "removed" if args.apply else "would be removed; --apply removes them"
    return _show_changes(args, found, found, errors, done, "")


# -- output -----------------------------------------------------------------------------------------------------------


def _show_changes(
    args: Arguments,
    acls: list[Acl],
    changed: list[Acl],
    errors: Mapping[Acl, ApiError | None],
    done: str,
    unchanged: str,
) -> int:
    """unchanged: why the others of `acls` are not changed."""
    failed = [acl for acl in changed if errors.get(acl) is not None]
    if args.json:
        for acl in acls:
            applied = args.apply and acl in changed and acl not in failed
            print(json_line(_fields(acl) | {"applied": applied, "problem": error_text(errors.get(acl))}))
    else:
        print(f"{counted(len(changed) - len(failed), 'ACL')} {done}")
        notes = {acl: f" ({unchanged})" for acl in acls if acl not in changed}
        _print_by_resource({acl: notes.get(acl, "") + _failure(errors.get(acl)) for acl in acls})
    return DAMAGE if failed else OK


def _failure(error: ApiError | None) -> str:
    return "" if error is None else f": not done: {error_text(error)}"


def _print_by_resource(notes: Mapping[Acl, str]) -> None:
    for resource, group in groupby(notes, lambda acl: acl[:3]):
        print(printable(f"{_resource_text(*resource)}:"))
        for acl in group:
            may = "may not" if acl.permission == _DENY else "may"
            operation = _name_of(acl.operation, AclOperation)
            what = "do everything" if acl.operation == AclOperation.ALL else operation
            host = "" if acl.host == WILDCARD else f" from {acl.host}"
            print(printable(f"  {acl.principal} {may} {what}{host}{notes[acl]}"))


def _type_text(kind: int) -> str:
    return _name_of(kind, ResourceType).replace("_", " ")


def _resource_text(kind: int, name: str, pattern_type: int) -> str:
    if kind == _CLUSTER:
        return "the cluster"
    if pattern_type == PatternType.PREFIXED:
        return f"every {_type_text(kind)} that begins with {name}"
    return f"every {_type_text(kind)}" if name == WILDCARD else f"{_type_text(kind)} {name}"


def _fields(acl: Acl) -> dict[str, Any]:
    return {
        "resource_type": _name_of(acl.resource_type, ResourceType),
        "resource_name": acl.resource_name,
        "pattern_type": _name_of(acl.pattern_type, PatternType),
        "principal": acl.principal,
        "host": acl.host,
        "operation": _name_of(acl.operation, AclOperation),
        "permission": _name_of(acl.permission, AclPermissionType),
    }
