"""What tests of programs that embed kcore use.

The public names load on first use: pytest imports this package in each run, also of tests without a broker.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kcore.testing.mock_time import MockTime as MockTime
    from kcore.testing.skip_time import SkipTime as SkipTime
    from kcore.testing.waits import WaitTimedOut as WaitTimedOut

_HOME = {
    "MockTime": "kcore.testing.mock_time",
    "SkipTime": "kcore.testing.skip_time",
    "WaitTimedOut": "kcore.testing.waits",
}

__all__ = [*_HOME]


def __getattr__(name: str) -> Any:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module 'kcore.testing' has no attribute {name!r}")
    value = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
