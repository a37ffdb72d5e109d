"""BrokerLoggers: the levels of this process's loggers, which clients see and change as resource BROKER_LOGGER.

Source: ConfigAdminManager.validateLogLevelConfigs, Log4jController, LogLevelConfig, Kafka 4.3; KIP-412.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable
from typing import ClassVar

from kcore.errors import InvalidConfig, InvalidRequest
from kcore.server.config.config_changes import AlterConfigOp, ConfigOperation, changes_of

#: Kafka's name for the logger of all others; here it is the one of the package, and not of the whole program.
ROOT = "root"
_PACKAGE = __name__.partition(".")[0]
#: Kafka's levels; Python has none below DEBUG.
_LEVELS = {"FATAL": 50, "ERROR": 40, "WARN": 30, "INFO": 20, "DEBUG": 10, "TRACE": 5}


class BrokerLoggers:
    """Thread-safe.  Brokers of one process share their loggers: a logger has the level that was set last by one that is
    not closed, and without one that of before."""

    _lock: ClassVar = threading.Lock()
    #: Logger -> its level before the first change.
    _before: ClassVar[dict[str, int]] = {}
    #: Logger -> the level that each has set, the latest last.
    _changes: ClassVar[dict[str, dict[BrokerLoggers, int]]] = {}

    def __init__(self, broker_id: int) -> None:
        self._broker_id = broker_id

    def check_name(self, resource_name: str) -> None:
        """Raises InvalidRequest for a resource that is not this broker."""
        if resource_name != str(self._broker_id):
            raise InvalidRequest(f"Unexpected broker id, expected {self._broker_id} but received {resource_name!r}")

    def levels(self) -> dict[str, str]:
        """The level in force of each logger, by name."""
        loggers = list(logging.root.manager.loggerDict.items())  # other threads make new ones meanwhile
        names = [name for name, logger in loggers if isinstance(logger, logging.Logger)]
        mine = sorted(name for name in names if name.startswith(f"{_PACKAGE}."))
        return {name: _shown(_logger(name).getEffectiveLevel()) for name in (ROOT, *mine)}

    def alter(self, resource_name: str, operations: Iterable[ConfigOperation], validate_only: bool = False) -> None:
        """Set levels, or delete them: such a logger has that of the one above it.

        Raises InvalidRequest, and InvalidConfig for an unknown logger or level.
        """
        self.check_name(resource_name)
        listed = list(operations)
        for _, operation, _ in listed:
            if operation in (AlterConfigOp.APPEND, AlterConfigOp.SUBTRACT):
                name = AlterConfigOp(operation).name
                raise InvalidRequest(f"{name} operation is not allowed for the BROKER_LOGGER resource")
        changes = changes_of(listed, lambda name: None)
        known = self.levels()
        for name, level in changes.items():
            if name not in known:
                raise InvalidConfig(f"Logger {name} does not exist!")
            if level is None and name == ROOT:
                raise InvalidRequest(f"Removing the log level of the {ROOT} logger is not allowed")
            if level is not None and level not in _LEVELS:
                raise InvalidConfig(
                    f"Cannot set the log level of {name} to {level} as it is not a supported log level. "
                    f"Valid log levels are {', '.join(_LEVELS)}"
                )
        if not validate_only:
            with self._lock:
                for name, level in changes.items():
                    self._before.setdefault(name, _logger(name).level)
                    of_each = self._changes.setdefault(name, {})
                    of_each.pop(self, None)
                    of_each[self] = logging.NOTSET if level is None else _LEVELS[level]
                    _logger(name).setLevel(of_each[self])

    def close(self) -> None:
        with self._lock:
            for name, of_each in list(self._changes.items()):
                if of_each.pop(self, None) is None:
                    continue
                _logger(name).setLevel(next(reversed(of_each.values()), self._before[name]))
                if not of_each:
                    del self._changes[name], self._before[name]


def _logger(name: str) -> logging.Logger:
    return logging.getLogger(_PACKAGE if name == ROOT else name)


def _shown(number: int) -> str:
    """The level of Kafka's that lets the same through."""
    return next((name for name, level in reversed(_LEVELS.items()) if number <= level), "OFF")
