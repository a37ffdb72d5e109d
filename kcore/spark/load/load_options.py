"""Options of a load test: the arguments of `kcore spark load`, checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from kcore.spark.options import OptionError

if TYPE_CHECKING:
    from kcore.record.record_batch import CompressionType

FILE_MODES = ("append", "read", "verify")
BROKER_MODES = ("produce", "fetch")
MODES = (*FILE_MODES, *BROKER_MODES)
CODECS: tuple[CompressionType, ...] = ("none", "gzip", "snappy", "lz4", "zstd")

#: Larger batches would exceed the largest size of Kafka's messages.
_MAX_BATCH = 100 << 20
_KIB = 1 << 10


@dataclass(frozen=True)
class LoadOptions:
    """Raises OptionError, which names the argument, for an invalid value.

    tasks: one load for each number.  Sizes are bytes; record_size counts the value alone, batch_size is that before
    compression.  log_size: how large each task's log may grow in mode append.  keep: do not remove these logs.
    """

    mode: str
    tasks: tuple[int, ...]
    paths: tuple[str, ...] = ()
    seconds: float = 10.0
    warm_up: float = 2.0
    record_size: int = 100
    batch_size: int = 16 * _KIB
    fetch_size: int = 1024 * _KIB
    codec: CompressionType = "none"
    log_size: int = 1 << 30
    keep: bool = False
    bootstrap_servers: str = ""
    topic: str = ""
    client_settings: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise OptionError(f"--mode {self.mode!r} is none of {', '.join(MODES)}")
        if not self.tasks or any(count < 1 for count in self.tasks):
            raise OptionError(f"--tasks {','.join(map(str, self.tasks))}: expected numbers from 1 on")
        if not 0 < self.seconds <= 86_400:
            raise OptionError(f"--seconds {self.seconds:g}: expected more than 0, and at most a day")
        if not 0 <= self.warm_up <= 86_400:
            raise OptionError(f"--warm-up {self.warm_up:g}: expected 0 or more seconds, and at most a day")
        if self.codec not in CODECS:
            raise OptionError(f"--codec {self.codec!r} is none of {', '.join(CODECS)}")
        for name, size in (("record", self.record_size), ("batch", self.batch_size), ("fetch", self.fetch_size)):
            if not 1 <= size <= _MAX_BATCH:
                raise OptionError(f"--{name}-size {size}: expected 1 to {_MAX_BATCH} bytes")
        if self.log_size < 1:
            raise OptionError(f"--log-size {self.log_size}: expected 1 byte or more")
        if self.mode in FILE_MODES:
            if not self.paths:
                raise OptionError(f"--mode {self.mode} needs a PATH")
            for name, value in (("--bootstrap-servers", self.bootstrap_servers), ("--topic", self.topic)):
                if value:
                    raise OptionError(f"{name} is for {' and '.join(BROKER_MODES)}, not for --mode {self.mode}")
        else:
            for name, value in (("--bootstrap-servers", self.bootstrap_servers), ("--topic", self.topic)):
                if not value:
                    raise OptionError(f"--mode {self.mode} needs {name}")
            if self.paths:
                raise OptionError(f"--mode {self.mode} goes through a broker, it takes no PATH ({self.paths[0]})")

    @classmethod
    def from_arguments(cls, args: SimpleNamespace) -> LoadOptions:
        """args: by name, what the command line has.  Raises OptionError."""
        return cls(
            mode=args.mode,
            tasks=_numbers("--tasks", args.tasks),
            paths=tuple(args.paths),
            seconds=args.seconds,
            warm_up=args.warm_up,
            record_size=args.record_size,
            batch_size=args.batch_size,
            fetch_size=args.fetch_size,
            codec=args.codec,
            log_size=args.log_size,
            keep=args.keep,
            bootstrap_servers=args.bootstrap_servers or "",
            topic=args.topic or "",
            client_settings=settings("--client", args.client),
        )

    def config(self) -> dict[str, str]:
        """The options that influence the figures, as text.  Settings of the client that may be secret are hidden."""
        names = ["mode", "seconds", "warm_up"]
        names += {
            "append": ["record_size", "batch_size", "codec", "log_size"],
            "read": ["fetch_size"],
            "verify": [],
            "produce": ["record_size", "batch_size", "codec", "bootstrap_servers", "topic"],
            "fetch": ["fetch_size", "bootstrap_servers", "topic"],
        }[self.mode]
        config = {name: str(getattr(self, name)) for name in names}
        if self.paths:
            config["paths"] = ",".join(self.paths)
        for name, value in self.client_settings.items():
            secret = any(word in name for word in ("password", "secret", "token", "key", "jaas", "oauth"))
            config[f"client.{name}"] = "(hidden)" if secret else value
        return config


def settings(option: str, texts: list[str]) -> dict[str, str]:
    """Parses texts of the form NAME=VALUE.  Raises OptionError."""
    values = {}
    for text in texts:
        name, sign, value = text.partition("=")
        if not sign or not name:
            raise OptionError(f"{option} {text!r}: expected NAME=VALUE")
        values[name.strip()] = value
    return values


def _numbers(option: str, text: Any) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in str(text).split(","))
    except ValueError:
        raise OptionError(f"{option} {text!r}: expected whole numbers, separated by commas") from None
