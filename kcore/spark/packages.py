"""The packages that `pip install 'kcore[spark]'` brings: what is said when one is not there."""

from __future__ import annotations

from importlib.util import find_spec
from types import ModuleType

from kcore.common.optional_packages import missing_package


def check_packages() -> None:
    """Raises ImportError, which says what to install, unless all are there that every use of Spark needs."""
    for name in ("pyspark", "pyarrow", "pandas"):
        if find_spec(name) is None:
            raise missing_package("kcore.spark", "spark", ModuleNotFoundError(name=name))


def confluent_kafka(what: str) -> ModuleType:
    """The client that what needs to speak with a broker.  Raises ImportError."""
    try:
        import confluent_kafka as module
    except ImportError as error:
        raise missing_package(what, "spark", error) from None
    found: ModuleType = module
    return found
