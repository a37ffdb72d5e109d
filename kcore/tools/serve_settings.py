"""The settings of `kcore serve`: a file (server.properties or TOML) and variables of the environment, by Kafka's names.

Source of the variables' rule: the images apache/kafka and confluentinc/cp-kafka.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from typing import Any

from kcore.common.properties import read_properties
from kcore.errors import InvalidConfig
from kcore.server.config.kafka_config import UnknownSettings
from kcore.tools.command_line import Arguments, UsageError

_PREFIX = "KAFKA_"
#: Variables that begin like settings and are for Java or the images' scripts.
_NO_SETTINGS = {
    *("KAFKA_HOME", "KAFKA_VERSION", "KAFKA_DEBUG", "KAFKA_CLUSTERS", "KAFKA_OPTS", "KAFKA_HEAP_OPTS"),
    *("KAFKA_JVM_PERFORMANCE_OPTS", "KAFKA_GC_LOG_OPTS", "KAFKA_JMX_OPTS", "KAFKA_JMX_HOSTNAME", "KAFKA_JMX_PORT"),
    *("KAFKA_LOG4J_OPTS", "KAFKA_LOG4J_LOGGERS", "KAFKA_LOG4J_ROOT_LOGLEVEL", "KAFKA_TOOLS_LOG4J_LOGLEVEL"),
}
#: What Kubernetes sets in every container beside a service named kafka.
_KUBERNETES = re.compile(r"KAFKA_SERVICE_\w+|KAFKA_PORT(_\d+_(TCP|UDP)\w*)?")


def given_settings(args: Arguments) -> dict[str, str]:
    """Those of --config, and with --environment those of the environment, which go before.  Raises OSError, UsageError,
    and UnicodeDecodeError for a .properties file that is not UTF-8."""
    of_file = settings_of_file(args.config) if args.config else {}
    return of_file | (settings_of_environment(os.environ) if args.environment else {})


def with_source(error: InvalidConfig, args: Arguments) -> InvalidConfig:
    """The error, with the variables and the file in front that have the settings which it names."""
    places = dict.fromkeys(settings_of_file(args.config) if args.config else (), args.config)
    if args.environment:
        places |= {name: variable_of(name) for name in settings_of_environment(os.environ)}
    if isinstance(error, UnknownSettings):
        named = dict.fromkeys(places[name] for name in error.names if name in places)
        return InvalidConfig(f"{', '.join(named)}: {error}") if named else error
    for name in sorted(places, key=len, reverse=True):
        if re.search(rf"(?<![\w.-]){re.escape(name)}(?![\w-])", str(error)):
            return InvalidConfig(f"{places[name]}: {error}")
    return error


def settings_of_file(path: str) -> dict[str, str]:
    """A Java .properties file; one whose name ends with .toml has tables for the parts of names, and lists:

        [log]
        dirs = ["/data/1", "/data/2"]
        retention.ms = 604800000

    Raises UsageError for what is no TOML, or has a value that no setting can have; OSError.
    """
    if not path.endswith(".toml"):
        return read_properties(path)
    import tomllib

    try:
        with open(path, "rb") as file:
            return dict(_flat(tomllib.load(file), "", path))
    except ValueError as error:  # no TOML, or no UTF-8
        raise UsageError(f"{path}: it is no TOML: {error}") from None


def settings_of_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """KAFKA_LOG_DIRS is log.dirs: "_" is a dot, "__" an underscore, "___" a dash."""
    return {
        re.sub("_+", _separator, variable.removeprefix(_PREFIX).lower()): value
        for variable, value in sorted(environment.items())
        if variable.startswith(_PREFIX) and variable not in _NO_SETTINGS and not _KUBERNETES.fullmatch(variable)
    }


def variable_of(name: str) -> str:
    """The variable of the environment for a setting."""
    return _PREFIX + name.replace("_", "__").replace("-", "___").replace(".", "_").upper()


def _separator(match: re.Match[str]) -> str:
    return {1: ".", 2: "_", 3: "-"}.get(len(match[0]), match[0])


def _flat(table: Mapping[str, Any], prefix: str, path: str) -> Iterator[tuple[str, str]]:
    for key, value in table.items():
        name = prefix + key
        if isinstance(value, dict):
            yield from _flat(value, f"{name}.", path)
        elif isinstance(value, list) and all(isinstance(item, str | int) for item in value):
            yield name, ",".join(map(_text, value))
        elif isinstance(value, str | int | float):
            yield name, _text(value)
        else:
            raise UsageError(f"{path}: {name}: expected a string, a number, true, false, or a list of these")


def _text(value: str | float) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
