"""Typed settings under Kafka's names: type, default, validator, one line of documentation."""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from kcore.errors import InvalidConfig


class ConfigType(enum.IntEnum):
    """The value is the code that DescribeConfigs answers with."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7
    CLASS = 8
    PASSWORD = 9


#: Returns what is wrong with a parsed value, or None.
Validator = Callable[[Any], str | None]

_RANGES = {
    ConfigType.INT: (-(2**31), 2**31 - 1),
    ConfigType.SHORT: (-(2**15), 2**15 - 1),
    ConfigType.LONG: (-(2**63), 2**63 - 1),
}


def at_least(minimum: float) -> Validator:
    return lambda value: None if value >= minimum else f"value must be at least {minimum}"


def above(minimum: float) -> Validator:
    return lambda value: None if value > minimum else f"value must be greater than {minimum}"


def between(minimum: float, maximum: float) -> Validator:
    return lambda value: None if minimum <= value <= maximum else f"value must be in [{minimum}, {maximum}]"


def one_of(*allowed: str) -> Validator:
    return lambda value: None if value in allowed else f"value must be one of {', '.join(allowed)}"


def valid_list(*allowed: str) -> Validator:
    def check(value: list[str]) -> str | None:
        bad = [item for item in value if item not in allowed]
        return f"every item must be one of {', '.join(allowed)}" if bad else None

    return check


def either(*validators: Validator) -> Validator:
    """Passes what any of the validators passes; the message is the last one's."""

    def check(value: Any) -> str | None:
        problem = None
        for validator in validators:
            problem = validator(value)
            if problem is None:
                return None
        return problem

    return check


@dataclass(frozen=True, slots=True)
class ConfigKey:
    name: str
    type: ConfigType
    default: Any
    validator: Validator | None = None
    doc: str = ""
    read_only: bool = field(default=False)

    def parse(self, value: Any) -> Any:
        """The typed value of what a client or a properties file says.

        None stands for "not set" and is accepted where None is the default.  Raises InvalidConfig naming the key.
        """
        if value is None and self.default is None:
            return None
        parsed = self._parse(value)
        problem = self.validator(parsed) if self.validator is not None else None
        if problem is not None:
            raise InvalidConfig(f"Invalid value {value} for configuration {self.name}: {problem}")
        return parsed

    def _parse(self, value: Any) -> Any:
        text = value.strip() if isinstance(value, str) else value
        try:
            if self.type is ConfigType.BOOLEAN:
                if isinstance(text, bool):
                    return text
                return {"true": True, "false": False}[text.lower()]
            if self.type in _RANGES:
                # int() alone would take "1_000", digits of other scripts, and 1.5.
                if isinstance(text, bool | float) or (
                    isinstance(text, str) and not (text.isascii() and "_" not in text)
                ):
                    raise ValueError
                number = int(text)
                low, high = _RANGES[self.type]
                if not low <= number <= high:
                    raise ValueError
                return number
            if self.type is ConfigType.DOUBLE:
                number_ = float(text)
                if math.isnan(number_):
                    raise ValueError
                return number_
            if self.type is ConfigType.LIST:
                items = text.split(",") if isinstance(text, str) else list(text)
                return [item.strip() for item in items] if items != [""] else []
            if not isinstance(text, str):
                raise ValueError
            return text
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError):
            raise InvalidConfig(
                f"Invalid value {value} for configuration {self.name}: not a value of type {self.type.name}"
            ) from None

    def format(self, value: Any) -> str | None:
        """The text of a typed value, as Kafka prints it."""
        if value is None:
            return None
        if self.type is ConfigType.BOOLEAN:
            return "true" if value else "false"
        if self.type is ConfigType.LIST:
            return ",".join(value)
        return str(value)


class ConfigDef:
    """A set of keys.  Iterates in the order of definition."""

    def __init__(self, keys: list[ConfigKey]) -> None:
        self._keys = {key.name: key for key in keys}
        assert len(self._keys) == len(keys), "a key was defined twice"

    def __iter__(self) -> Iterator[ConfigKey]:
        return iter(self._keys.values())

    def __contains__(self, name: object) -> bool:
        return name in self._keys

    def __getitem__(self, name: str) -> ConfigKey:
        return self._keys[name]

    def get(self, name: str) -> ConfigKey | None:
        return self._keys.get(name)

    def names(self) -> list[str]:
        return list(self._keys)

    def parse(self, properties: Mapping[str, Any]) -> dict[str, Any]:
        """Every key's typed value, defaults where properties say nothing; unknown names are left out.

        Raises InvalidConfig.
        """
        return {
            name: key.parse(properties[name]) if name in properties else key.default for name, key in self._keys.items()
        }
