"""What is said when a package that only an extra brings is not there."""

from __future__ import annotations

#: Where the name of a package differs from that of its module.
_PACKAGES = {"confluent_kafka": "confluent-kafka", "prometheus_client": "prometheus-client"}


def missing_package(what: str, extra: str, error: ImportError) -> ImportError:
    """The ImportError to raise in the place of error, which importing a package raised: names what needs the package,
    and the extra of kcore that brings it.

        try:
            import pyarrow
        except ImportError as error:
            raise missing_package("to_arrow()", "arrow", error) from None
    """
    install = f"pip install 'kcore[{extra}]'"
    if not isinstance(error, ModuleNotFoundError) or error.name is None:
        return ImportError(f"{what}: {error}; {install} brings what it needs")
    module = error.name.partition(".")[0]
    return ModuleNotFoundError(f"{what} needs {_PACKAGES.get(module, module)}: {install}", name=error.name)
