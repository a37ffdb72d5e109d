"""Checks for the packages of `pip install 'kcore[spark]'`, with an error that names a missing one."""

from __future__ import annotations

from importlib.util import find_spec
from types import ModuleType

from kcore.common.optional_packages import missing_package


def check_packages() -> None:
    """Raises ImportError, which says what to install, if a package is missing that every use of Spark needs."""
    for name in ("pyspark", "pyarrow", "pandas"):
        if find_spec(name) is None:
            raise missing_package("kcore.spark", "spark", ModuleNotFoundError(name=name))


def confluent_kafka(what: str) -> ModuleType:
    """The module confluent_kafka.  what: the feature that needs it, for the error.  Raises ImportError."""
    try:
        import confluent_kafka as module
    except ImportError as error:
        raise missing_package(what, "spark", error) from None
    client: ModuleType = module
    return client
