"""The arguments of Broker's methods, checked."""

from __future__ import annotations

import operator
from typing import Any

from kcore.errors import InvalidConfig


def string(argument: str, value: Any) -> str:
    """Raises TypeError, as the others do."""
    if not isinstance(value, str):
        raise TypeError(f"{argument} must be a str, not {value!r}")
    return value


def integer(argument: str, value: Any) -> int:
    if isinstance(value, bool) or not hasattr(type(value), "__index__"):
        raise TypeError(f"{argument} must be an int, not {value!r}")
    return operator.index(value)


def port_number(argument: str, value: Any) -> int:
    """Raises InvalidConfig, too."""
    port = integer(argument, value)
    if not 0 <= port <= 65535:
        # getaddrinfo would take it modulo 65536.
        raise InvalidConfig(f"{argument} {port} is not one of 0 to 65535")
    return port


def number(argument: str, value: Any) -> float:
    import numbers

    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(f"{argument} must be a number, not {value!r}")
    return float(value)


def as_text(value: Any) -> str:
    """A setting's value as Kafka writes it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (list, tuple)):
        return ",".join(map(str, value))
    return str(value)
