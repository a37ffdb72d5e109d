"""A program that uses kcore, for mypy --strict: the installed package says its types (py.typed and the .pyi files)."""

from collections.abc import Iterator

import kcore


def values(directory: str) -> Iterator[bytes | None]:
    with kcore.open_log(directory) as log:
        for record in log.records():
            yield record.value


def first_size(directory: str) -> int:
    with kcore.open_log(directory) as log:
        for batch in log.batches():
            size: int = batch.size
            return size
    return 0


with kcore.Broker() as broker:
    metadata = broker.produce("orders", b"value")
    offset: int = metadata.offset
    bootstrap: str = broker.bootstrap_servers
