"""Options of Kafka's scripts, of kcat and of web servers, and what `kcore` has in their place: main() asks for it when
a command has no such option."""

from __future__ import annotations

from collections.abc import Iterator

import click

from kcore.tools.commands import LazyCommand

_BOOTSTRAP = ("--bootstrap",)
_PAGE = "--http=127.0.0.1:N"
_DIRECTORY = ("--data", "DIR", "PATH")
_APPLY = ("--apply",)

#: Option -> what a command may have in its place; the first that it has counts.  "--from=latest" is an option with its
#: value, TOPIC an argument.
IN_PLACE: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("-b", "--broker", "--brokers", "--broker-list", "--bootstrap-servers", "--server"), _BOOTSTRAP),
    **dict.fromkeys(("-t", "--topic", "--topics"), ("TOPIC",)),
    **dict.fromkeys(("-G", "--group", "--group-id", "--consumer-group"), ("--group", "GROUP")),
    **dict.fromkeys(("-l", "--file", "--files", "--input"), ("FILE", "PATH")),
    **dict.fromkeys(("-d", "--data", "--data-dir", "--dir", "--directory", "--log-dir", "--log-dirs"), _DIRECTORY),
    **dict.fromkeys(("-V", "-v"), ("--version",)),
    "-p": ("--partition", "--partitions", "--port", _PAGE),
    # of what serves a page, or listens
    **dict.fromkeys(("--port", "--http-port", "--web-port"), (_PAGE,)),
    **dict.fromkeys(("--host", "--bind", "--listen", "--address"), ("--host", "--http")),
    "--web": ("--http",),
    # of a broker
    **dict.fromkeys(("--broker-id", "--node-id"), ("--id",)),
    "--zookeeper": ("--store=zookeeper://HOST:PORT", *_BOOTSTRAP),
    "--override": ("-o",),
    "--properties": ("--config",),
    # of a consumer
    **dict.fromkeys(("-c", "-n", "--count", "--limit"), ("--max",)),
    **dict.fromkeys(("--earliest", "--beginning"), ("--from=earliest",)),
    **dict.fromkeys(("--latest", "--end"), ("--from=latest",)),
    "-J": ("--json",),
    "--timeout-ms": ("--timeout",),
    # of a producer, and of both
    **dict.fromkeys(("-K", "--property"), ("--key-separator", "--format")),
    **dict.fromkeys(("-k", "--key"), ("--key", "--key-separator")),
    **dict.fromkeys(("-H", "--headers"), ("--header",)),
    **dict.fromkeys(("-z", "--codec", "--compression-type"), ("--compression",)),
    # of other tools
    "--output-format": ("--format",),
    "--all-topic-partitions": ("--all",),
    **dict.fromkeys(("--verify", "--list"), ("--status",)),
    **dict.fromkeys(("-y", "--yes", "--force", "--fix", "--confirm", "--execute"), _APPLY),
}

_SHOWS_ALL = "leave it out: it shows members and offsets"
_PARTITIONS = "use the command `kcore cluster`, which shows partitions that lack a leader or a replica in sync"
_REINDEX = "use the command `kcore reindex --check`"
_ACKS = "leave it out: acks is all"
_MOVE = "name the partitions, and with --to their brokers"
_NO_INTERNAL = "leave it out: only --internal adds internal topics"

#: What to do instead, by the command and the option, or the command that it does not have.
ADVICE: dict[tuple[str, str], str] = {
    ("kcore", "-C"): "use the command `kcore consume`",
    ("kcore", "-P"): "use the command `kcore produce`",
    ("kcore", "-L"): "use the command `kcore topics describe`",
    ("kcore consume", "-C"): "leave it out",
    ("kcore consume", "-e"): "leave it out: it ends at the end of the topic, but for --follow",
    ("kcore produce", "-P"): "leave it out",
    **{("kcore produce", name): _ACKS for name in ("--acks", "--request-required-acks", "--sync")},
    ("kcore metadata", "-L"): "leave it out",
    ("kcore topics list", "--exclude-internal"): _NO_INTERNAL,
    **{
        ("kcore topics describe", f"--{state}-partitions"): _PARTITIONS
        for state in ("under-replicated", "unavailable", "under-min-isr", "at-min-isr")
    },
    ("kcore groups", "--reset-offsets"): "use the command `kcore groups reset`",
    ("kcore groups reset", "--reset-offsets"): "leave it out",
    ("kcore groups list", "--state"): "use the command `kcore groups describe`, or --json",
    **{
        (
            f"kcore quotas {command}",
            name,
        ): "use --user USER, --client ID or --ip ADDRESS, or --user-defaults and its like"
        for command in ("list", "set", "unset")
        for name in ("--entity-type", "--entity-name", "--entity-default")
    },
    **{("kcore groups describe", name): _SHOWS_ALL for name in ("--members", "--offsets", "--state", "--verbose")},
    ("kcore groups describe", "--all-groups"): "leave it out: without GROUP it shows all groups",
    **{
        ("kcore configs", name): "use the command `kcore configs set` or `kcore configs unset`"
        for name in ("alter", "--alter")
    },
    **{("kcore dump", name): _REINDEX for name in ("--index-sanity-check", "--verify-index-only")},
    **{("kcore verify", name): "use the command `kcore repair`" for name in ("--fix", "--repair")},
    **{("kcore reassign", name): _MOVE for name in ("--reassignment-json-file", "--topics-to-move-json-file")},
    ("kcore reassign", "--generate"): "use --dry-run with --to",
    ("kcore elect", "--election-type"): "leave it out, or use --unclean",
    ("kcore logdirs list", "--describe"): "leave it out",
    ("kcore logdirs", "--describe"): "use the command `kcore logdirs list`",
    ("kcore txns list", "--transactional-id"): "use the command `kcore txns describe`",
}


def advice(ctx: click.Context, name: str) -> str | None:
    """What to do instead of giving ctx's command this option, or command; None: not known."""
    if text := ADVICE.get((ctx.command_path, name)):
        return text
    if ctx.parent is not None and name == f"--{ctx.info_name}":
        return "leave it out"
    if isinstance(ctx.command, click.Group) and (text := _of_group(ctx, ctx.command, name)):
        return text
    for candidate in IN_PLACE.get(name, ()):
        if text := _option_of(ctx, candidate) if candidate.startswith("-") else _argument_of(ctx, candidate):
            return text
    if name == "--dry-run" and _option_of(ctx, "--apply"):
        return "leave it out: without --apply nothing changes"
    return _setting(name) if ctx.command_path == "kcore serve" else None


def _of_group(ctx: click.Context, group: click.Group, name: str) -> str | None:
    """A command that is written as an option, or an option before its command."""
    if name.startswith("--") and name[2:] in group.commands:
        return f"use the command `{ctx.command_path} {name[2:]}`"
    for option in (name, *IN_PLACE.get(name, ())):
        for subcommand in _subcommands(ctx, group):
            if option.startswith("-") and (text := _option_of(subcommand, option)):
                return f"use it after the command, as in `{subcommand.command_path} {text.removeprefix('use ')}`"
    return None


def _subcommands(ctx: click.Context, group: click.Group) -> Iterator[click.Context]:
    """Of kcore itself those of `kcore topics`, as examples; other modules are not imported for an error."""
    for name, command in group.commands.items():
        if not isinstance(command, LazyCommand):
            yield click.Context(command, ctx, name)
        elif name == "topics" and isinstance(topics := command.load(), click.Group):
            yield from _subcommands(click.Context(topics, ctx, name), topics)


def _option_of(ctx: click.Context, candidate: str) -> str | None:
    name, equals, value = candidate.partition("=")
    for option in ctx.command.params:
        if isinstance(option, click.Option) and name in option.opts and not option.hidden:
            shown = value if equals else "" if option.is_flag else option.make_metavar(ctx)
            return f"use {name} {shown}".rstrip()
    return None


def _argument_of(ctx: click.Context, name: str) -> str | None:
    for argument in ctx.command.params:
        if isinstance(argument, click.Argument) and name in argument.make_metavar(ctx).strip("[].").split(":"):
            usage = " ".join(ctx.command.get_usage(ctx).removeprefix("Usage: ").split())
            return f"{name} needs no option: {usage}"
    return None


def _setting(name: str) -> str | None:
    """--num-partitions, --num.partitions: a broker setting."""
    from kcore.server.config.broker_settings import KAFKA_CONFIG_DEF

    setting = name.lstrip("-").replace("-", ".")
    return f"use -o {setting}=VALUE" if setting in KAFKA_CONFIG_DEF else None
