"""Which cluster a command asks: --bootstrap, $KCORE_BOOTSTRAP, the configuration file, or port 9092 of this machine."""

from __future__ import annotations

import os
from typing import Any

import click
from click.core import ParameterSource

from kcore.tools import config_file
from kcore.tools.command_line import DEFAULT_BOOTSTRAP, Arguments, Decorator, addresses

#: The variable of the environment that takes the place of DEFAULT_BOOTSTRAP.
BOOTSTRAP_VARIABLE = "KCORE_BOOTSTRAP"


class Bootstrap(str):
    """Addresses of brokers.  origin: the variable or the file that has them; None for the command line and the
    default.  is_given: they are on the command line.  is_default: they are nowhere."""

    origin: str | None = None
    is_given = False
    is_default = False


class _BootstrapType(click.ParamType[Bootstrap]):
    name = "addresses"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Bootstrap:
        bootstrap = Bootstrap(value)
        if param is not None and ctx is not None and param.name is not None:
            source = ctx.get_parameter_source(param.name)
            bootstrap.is_given = source is ParameterSource.COMMANDLINE
            bootstrap.is_default = source is ParameterSource.DEFAULT
            if source is ParameterSource.ENVIRONMENT:
                bootstrap.origin = BOOTSTRAP_VARIABLE
            elif source is ParameterSource.DEFAULT_MAP:
                bootstrap.origin = config_file.path()
        return bootstrap


def bootstrap_option() -> Decorator:
    return click.option(
        "--bootstrap",
        "--bootstrap-server",
        type=_BootstrapType(),
        envvar=BOOTSTRAP_VARIABLE,
        default=DEFAULT_BOOTSTRAP,
        metavar="HOST:PORT[,...]",
        help=f"brokers of the cluster, one is enough; default: ${BOOTSTRAP_VARIABLE}, else that of the configuration "
        f"file, else {DEFAULT_BOOTSTRAP}",
    )


def default_bootstrap() -> str:
    """The addresses that a command asks without --bootstrap.  Raises OSError, UsageError for the configuration file."""
    return os.environ.get(BOOTSTRAP_VARIABLE) or str(config_file.read().get("bootstrap", DEFAULT_BOOTSTRAP))


def note_origin(args: Arguments, error: Exception) -> None:
    """If the error names an address that is not on the command line, add a note that says where it is; if nobody
    listens at the default address, what to do."""
    bootstrap = getattr(args, "bootstrap", None)
    if not isinstance(bootstrap, Bootstrap):
        return
    if not any(f"{host}:{port}" in str(error) for host, port in addresses(bootstrap)):
        return
    if bootstrap.origin is not None:
        error.add_note(f"the address comes from {bootstrap.origin}")
    elif bootstrap.is_default and isinstance(error, ConnectionRefusedError):
        error.add_note(
            f"the default address: `kcore serve --data DIR` starts a broker there; --bootstrap or {BOOTSTRAP_VARIABLE} "
            "names another one"
        )
