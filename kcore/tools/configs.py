"""`kcore configs`: show, set, unset and explain the settings of topics, brokers, groups and client metrics."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import click

from kcore.client.config_client import ConfigClient, ConfigResource, ConfigSource, ResourceKind, Setting, Synonym
from kcore.common.text import counted, json_line, nearest, printable
from kcore.errors import ApiError
from kcore.log.log_config import BROKER_SYNONYMS, LOG_CONFIG_DEF
from kcore.tools.cluster_command import apply_option, cluster_client, cluster_options
from kcore.tools.cluster_names import broker_ids_of_cluster, group_ids, topic_names
from kcore.tools.command_line import (
    OK,
    Arguments,
    Decorator,
    UsageError,
    broker_id,
    protocol_string,
    protocol_strings,
    several,
)
from kcore.tools.commands import Group

#: As kafka-configs.sh names what has settings.
_ENTITY_TYPES = {
    "topics": ResourceKind.TOPIC,
    "brokers": ResourceKind.BROKER,
    "groups": ResourceKind.GROUP,
    "client-metrics": ResourceKind.CLIENT_METRICS,
}
#: Those of its types whose settings are quotas.
_QUOTA_TYPES = ("users", "clients", "ips")
_SOURCES = {
    ConfigSource.UNKNOWN: "source not known",
    ConfigSource.TOPIC: "topic",
    ConfigSource.BROKER: "dynamic broker",
    ConfigSource.ALL_BROKERS: "dynamic default",
    ConfigSource.STATIC: "static",
    ConfigSource.DEFAULT: "default",
    ConfigSource.BROKER_LOGGER: "logger",
    ConfigSource.CLIENT_METRICS: "client metrics",
    ConfigSource.GROUP: "group",
}
_WHOSE = ("--topic", "--broker", "--default", "--group", "--client-metrics", "--entity-type")

configs = Group("configs", status_1=None)


# -- whose settings ---------------------------------------------------------------------------------------------------


def _entity_type(text: str) -> str:
    """Raises click.BadParameter."""
    if text in _ENTITY_TYPES:
        return text
    if text in _QUOTA_TYPES:
        raise click.BadParameter(f"the settings of {text} are quotas: `kcore quotas --help`")
    raise click.BadParameter(f"{text!r}: expected {', '.join(_ENTITY_TYPES)}{nearest(text, _ENTITY_TYPES)}")


def _resource_options() -> Decorator:
    """For _resource()."""
    return several(
        click.option(
            "--topic", type=protocol_string, shell_complete=topic_names, metavar="TOPIC", help="those of a topic"
        ),
        click.option(
            "--broker", type=broker_id, shell_complete=broker_ids_of_cluster, metavar="ID", help="those of one broker"
        ),
        click.option(
            "--default",
            "--broker-defaults",
            "--entity-default",
            is_flag=True,
            help="those that all brokers have, unless one has its own",
        ),
        click.option(
            "--group", type=protocol_string, shell_complete=group_ids, metavar="GROUP", help="those of a group"
        ),
        click.option(
            "--client-metrics", type=protocol_string, metavar="NAME", help="those of a subscription to metrics"
        ),
        click.option(
            "--entity-type",
            type=_entity_type,
            metavar="TYPE",
            help=f"{', '.join(_ENTITY_TYPES)}, with --entity-name NAME or --entity-default, as kafka-configs.sh has it",
        ),
        click.option("--entity-name", type=protocol_string, metavar="NAME", hidden=True),
    )


def _resource(args: Arguments) -> ConfigResource | None:
    """Whose settings the options name; None without one.  Raises UsageError."""
    named = {
        ResourceKind.TOPIC: args.topic,
        ResourceKind.BROKER: None if args.broker is None else str(args.broker),
        ResourceKind.GROUP: args.group,
        ResourceKind.CLIENT_METRICS: args.client_metrics,
    }
    given = [ConfigResource(kind, name) for kind, name in named.items() if name is not None]
    if args.entity_type is not None:
        given.append(_kafkas_resource(args))
    elif args.entity_name is not None:
        raise UsageError("--entity-name needs --entity-type")
    elif args.default:
        given.append(ConfigResource(ResourceKind.BROKER, ""))
    if len(given) > 1 or (args.default and given and given[0] != (ResourceKind.BROKER, "")):
        raise UsageError(f"expected only one of {', '.join(_WHOSE)}")
    return given[0] if given else None


def _kafkas_resource(args: Arguments) -> ConfigResource:
    """Of --entity-type.  Raises UsageError."""
    kind = _ENTITY_TYPES[args.entity_type]
    if args.default and kind is ResourceKind.BROKER and args.entity_name is None:
        return ConfigResource(kind, "")
    if args.entity_name is None or args.default:
        expected = "--entity-name ID or --entity-default" if kind is ResourceKind.BROKER else "--entity-name NAME"
        raise UsageError(f"--entity-type {args.entity_type} needs {expected}")
    if kind is ResourceKind.BROKER and not args.entity_name.isdecimal():
        raise UsageError(f"--entity-name {args.entity_name!r}: expected a broker id, a whole number")
    return ConfigResource(kind, args.entity_name)


def _one_resource(args: Arguments) -> ConfigResource:
    """Raises UsageError."""
    resource = _resource(args)
    if resource is None:
        raise UsageError(f"whose settings? Expected one of {', '.join(_WHOSE)}")
    return resource


def _resource_text(resource: ConfigResource) -> str:
    if resource == (ResourceKind.BROKER, ""):
        return "all brokers"
    return f"{resource.kind.name.lower().replace('_', ' ')} {resource.name}"


def _resource_fields(resource: ConfigResource) -> dict[str, str | None]:
    return {"resource_type": resource.kind.name.lower(), "resource_name": resource.name or None}


# -- names of settings ------------------------------------------------------------------------------------------------


def _setting_names(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Of topics or of brokers, for a shell; without a broker's answer, as they are the same everywhere."""
    names = _topic_names() if ctx.params.get("topic") else _broker_names() | _topic_names()
    return sorted(name for name in names if name.startswith(incomplete))


def _topic_names() -> set[str]:
    return {key.name for key in LOG_CONFIG_DEF}


def _broker_names() -> set[str]:
    from kcore.server.config.broker_settings import KAFKA_CONFIG_DEF

    return {key.name for key in KAFKA_CONFIG_DEF}


def _check_names(
    client: ConfigClient, resource: ConfigResource, names: Iterable[str], settings: Mapping[str, Setting]
) -> None:
    """settings: what the broker describes.  Raises UsageError for a name that nobody knows, with the nearest one.

    Kafka's brokers store a setting of a broker with any name.
    """
    known: Collection[str] = settings
    if resource == (ResourceKind.BROKER, ""):  # only those that are set are described
        some_broker = next(iter(client.describe_cluster(()).brokers))
        known = client.settings(ConfigResource(ResourceKind.BROKER, str(some_broker)))
    elif resource.kind is ResourceKind.CLIENT_METRICS:  # the same
        return
    for name in names:
        is_broker = resource.kind is ResourceKind.BROKER
        if name not in known and not (is_broker and (name in _broker_names() or name.startswith("listener.name."))):
            whose = f"{resource.kind.name.lower().replace('_', ' ')}s"
            raise UsageError(f"{whose} have no setting {name!r}{nearest(name, known)}")


# -- describe ---------------------------------------------------------------------------------------------------------


@configs.subcommand(
    "describe",
    "show the settings that differ from their defaults, and where each value comes from",
    example="kcore configs describe --topic orders",
)
@click.argument(
    "keys",
    nargs=-1,
    type=protocol_string,
    shell_complete=_setting_names,
    metavar="[KEY]...",
    help="these settings, whatever their values",
)
@_resource_options()
@click.option("--all", is_flag=True, help="also the settings that have their default value")
@cluster_options("one JSON object a line for each setting")
def _run_describe(args: Arguments) -> int:
    """Without a resource: what topics and brokers have of their own.  Raises UsageError, OSError, KafkaError."""
    wanted = _resource(args)
    with cluster_client(ConfigClient, args, ends_where_locked=True) as client:
        if wanted is None and (args.all or args.keys):
            _one_resource(args)
        described = {r: client.settings(r) for r in ([wanted] if wanted else _all_resources(client))}
        if wanted is not None and args.keys:
            _check_names(client, wanted, args.keys, described[wanted])
    are_shown = False
    for resource, settings in described.items():
        shown = {
            name: setting for name, setting in settings.items() if _is_shown(args, wanted, resource, name, setting)
        }
        are_shown = are_shown or bool(shown)
        if args.json:
            for name, setting in shown.items():
                print(json_line(_resource_fields(resource) | _setting_fields(name, setting)))
        elif shown:
            print(printable(f"{_resource_text(resource)}:"))
            for name, setting in shown.items():
                print(printable(f"  {_setting_text(name, setting)}"))
    if not are_shown and not args.json:
        whose = "" if wanted is None else f"{_resource_text(wanted)}: "
        print(printable(f"{whose}{'not set' if args.keys else 'nothing differs from the defaults'}"))
    return OK


def _all_resources(client: ConfigClient) -> list[ConfigResource]:
    cluster = client.describe_cluster()
    brokers = ["", *map(str, cluster.brokers)]
    topics = [ConfigResource(ResourceKind.TOPIC, name) for name in cluster.topics]
    return [ConfigResource(ResourceKind.BROKER, name) for name in brokers] + topics


def _is_shown(
    args: Arguments, wanted: ConfigResource | None, resource: ConfigResource, name: str, setting: Setting
) -> bool:
    if args.keys:
        return name in args.keys
    if wanted is None and resource.kind is ResourceKind.TOPIC:  # what it has of the brokers is there with these
        return setting.source is resource.own_source
    return args.all or setting.source is not ConfigSource.DEFAULT


def _setting_fields(name: str, setting: Setting) -> dict[str, Any]:
    return {
        "name": name,
        "value": setting.value,
        "source": _SOURCES[setting.source],
        "is_read_only": setting.is_read_only,
        "is_sensitive": setting.is_sensitive,
        "meaning": setting.documentation,
    }


def _setting_text(name: str, setting: Setting) -> str:
    value = "(hidden)" if setting.is_sensitive else "(not set)" if setting.value is None else setting.value
    return f"{name}={value} ({_SOURCES[setting.source]})"


# -- changes ----------------------------------------------------------------------------------------------------------


def _new_setting(text: str) -> tuple[str, str]:
    """Raises click.BadParameter."""
    name, equals, value = text.partition("=")
    if not name.strip() or not equals:
        raise click.BadParameter(f"{text!r}: expected KEY=VALUE")
    return protocol_string(name.strip()), protocol_string(value)


def _kafkas_settings(text: str) -> list[tuple[str, str]]:
    """ "a=1,b=[x,y]"; raises click.BadParameter."""
    settings = [_new_setting(part) for part in re.split(r",(?![^\[]*\])", text)]
    return [(name, value.removeprefix("[").removesuffix("]")) for name, value in settings]


@configs.subcommand(
    "set",
    "say what would change; with --apply, change settings",
    example="kcore configs set --topic orders retention.ms=60000 --apply",
)
@click.argument(
    "settings", nargs=-1, type=_new_setting, shell_complete=_setting_names, metavar="KEY=VALUE...", help="new values"
)
@click.option(
    "--add-config",
    type=_kafkas_settings,
    multiple=True,
    metavar="KEY=VALUE[,...]",
    help="the same, as kafka-configs.sh has it",
)
@_resource_options()
@apply_option()
@cluster_options("one JSON object a line for each setting")
def _run_set(args: Arguments) -> int:
    settings = [*args.settings, *(setting for part in args.add_config for setting in part)]
    return _change(args, [name for name, _ in settings], dict(settings))


@configs.subcommand(
    "unset",
    "say what would change; with --apply, delete settings, so that the value of the brokers or the default holds",
    example="kcore configs unset --topic orders retention.ms --apply",
)
@click.argument("keys", nargs=-1, type=protocol_string, shell_complete=_setting_names, metavar="KEY...")
@click.option(
    "--delete-config",
    type=protocol_strings,
    multiple=True,
    metavar="KEY[,...]",
    help="the same, as kafka-configs.sh has it",
)
@_resource_options()
@apply_option()
@cluster_options("one JSON object a line for each setting")
def _run_unset(args: Arguments) -> int:
    names = [*args.keys, *(name for part in args.delete_config for name in part)]
    return _change(args, names, dict.fromkeys(names))


def _change(args: Arguments, names: Sequence[str], changes: dict[str, str | None]) -> int:
    """Raises UsageError, OSError, KafkaError."""
    resource = _one_resource(args)
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"the setting {name} is there more than once")
    if not names:
        raise UsageError("nothing to change: expected KEY=VALUE, or for unset KEY")
    with cluster_client(ConfigClient, args) as client:
        before = client.settings(resource)
        _check_names(client, resource, names, before)
        for name in names:
            if name in before and before[name].is_read_only:
                raise UsageError(
                    f"{name} cannot be changed while the broker runs: change it in its server.properties, or in the "
                    f"options of its start (kcore serve -o {name}=VALUE), and start it again"
                )
        plan = {
            name: _Change(resource, before.get(name), Synonym(name, value, resource.own_source))
            if value is not None
            else _Change(resource, before.get(name), _left(client, resource, name, before.get(name)), is_unset=True)
            for name, value in changes.items()
        }
        needed = {name: change.value for name, change in plan.items() if change.is_needed}
        if needed:
            client.alter_settings(resource, needed, validate_only=True)
            if args.apply:
                client.alter_settings(resource, needed)
    if args.json:
        for name, change in plan.items():
            applied = args.apply and change.is_needed
            print(json_line(_resource_fields(resource) | {"name": name} | change.fields() | {"applied": applied}))
        return OK
    done = "changed" if args.apply else "would change; --apply changes them"
    print(printable(f"{_resource_text(resource)}: {counted(len(needed), 'setting')} {done}"))
    for name, change in plan.items():
        print(printable(f"  {name}: {change.text()}"))
    return OK


class _Change:
    """From the present setting of a resource to a new one; is_unset: its own is deleted, and new holds then."""

    def __init__(
        self, resource: ConfigResource, before: Setting | None, new: Synonym | None, *, is_unset: bool = False
    ) -> None:
        own = resource.own_source
        #: What the resource has of its own afterwards.
        self.value = None if is_unset or new is None else new.value
        is_own = before is not None and (before.source is own or any(s.source is own for s in before.synonyms))
        #: Whether anything is to be done.
        self.is_needed = is_own if is_unset else not (is_own and before is not None and before.value == self.value)
        self._is_hidden = before is not None and before.is_sensitive
        self._old = None if before is None else Synonym("", before.value, before.source)
        self._new = new

    def text(self) -> str:
        if not self.is_needed:
            return "is not set here: nothing to do" if self.value is None else f"is {self.value} already: nothing to do"
        return f"{self._value_text(self._old)} -> {self._value_text(self._new)}"

    def _value_text(self, value: Synonym | None) -> str:
        if value is None:
            return "not set"
        shown = "(hidden)" if self._is_hidden else "not set" if value.value is None else value.value
        return f"{shown} ({_SOURCES[value.source]})"

    def fields(self) -> dict[str, str | None]:
        old = self._old
        return {
            "old_value": None if old is None else old.value,
            "old_source": None if old is None else _SOURCES[old.source],
            "new_value": None if self._is_hidden or self._new is None else self._new.value,
            "new_source": None if self._new is None else _SOURCES[self._new.source],
        }


def _left(client: ConfigClient, resource: ConfigResource, name: str, before: Setting | None) -> Synonym | None:
    """What holds once the resource's own value is deleted; None if nothing does, or that is not known."""
    left = None if before is None else before.without(resource.own_source)
    if left is None and before is not None and resource.kind is ResourceKind.TOPIC:
        # Of several settings of brokers that give topics theirs, Kafka's name only the first one.
        some_broker = next(iter(client.describe_cluster(()).brokers))
        try:
            settings = client.settings(ConfigResource(ResourceKind.BROKER, str(some_broker)))
        except ApiError:  # the user may not read them
            return None
        for broker_name, _ in BROKER_SYNONYMS.get(name, ()):
            setting = settings.get(broker_name)
            if setting is not None and setting.value is not None:
                left = Synonym(broker_name, setting.value, setting.source)
                break
    return None if left is None else _in_unit_of(name, left)


def _in_unit_of(name: str, synonym: Synonym) -> Synonym:
    """retention.ms may come from log.retention.hours, which is in hours."""
    factor = dict(BROKER_SYNONYMS.get(name, ())).get(synonym.name, 1)
    if factor == 1 or synonym.value is None or int(synonym.value) < 0:
        return synonym
    return synonym._replace(value=str(int(synonym.value) * factor))


# -- explain ----------------------------------------------------------------------------------------------------------


@configs.subcommand(
    "explain",
    "say what a setting means, its type and its default; asks no broker",
    example="kcore configs explain retention.ms",
)
@click.argument("key", type=protocol_string, shell_complete=_setting_names, metavar="KEY")
@click.option("--json", is_flag=True, help="one JSON object a line for what the name means to topics, and to brokers")
def _run_explain(args: Arguments) -> int:
    """Raises UsageError for a setting that Kafka does not have."""
    from kcore.tools.setting_meanings import meanings_of

    for meaning in meanings_of(args.key):
        print(json_line(meaning._asdict()) if args.json else meaning.text())
    return OK
