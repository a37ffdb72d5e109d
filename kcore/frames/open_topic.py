"""open_topic: all partitions of a topic in data directories as one table, without a broker."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING

from kcore.common.file import exists, is_directory, list_directory
from kcore.common.optional_packages import missing_package
from kcore.common.text import nearest
from kcore.errors import CorruptFile
from kcore.log.load_journal import JOURNAL_FILE
from kcore.log.log_file_names import parse_partition_directory
from kcore.log.log_iteration import Isolation
from kcore.log.open_log import open_log

if TYPE_CHECKING:
    from kcore.frames.topic import Topic

_PARTITION_HINT = ": it is the directory of a partition; name the data directory around it"

Path = str | os.PathLike[str]


def open_topic(
    directories: Path | Sequence[Path],
    topic: str,
    *,
    columns: Sequence[str] | None = None,
    isolation: Isolation = "read_uncommitted",
) -> Topic:
    """The partitions of `topic` that are in these data directories (Kafka's log.dirs), as one table: a pyarrow Dataset
    and a context manager.

    DuckDB (`duckdb.sql("SELECT count(*) FROM orders")` for a variable `orders`) and Polars
    (`pl.scan_pyarrow_dataset(orders)`) read only the columns that a query needs, and only the parts of the log that
    its conditions on partition, offset and timestamp leave.  Nothing on disk changes, and no lock is needed.
    The logs are those of this moment: open the topic again to see what was written since.

    columns: the table's columns, as in UnifiedLog.to_arrow().  isolation: "read_committed" leaves out aborted
    transactions, and ends each partition at its last stable offset.
    Raises FileNotFoundError for a topic that is not there, NotADirectoryError, ImportError without pyarrow, TypeError,
    ValueError for an unknown column, CorruptFile for a partition that is in two directories or a load that was
    interrupted, and what open_log() raises.
    """
    try:
        from kcore.frames.topic import Topic
    except ImportError as error:
        raise missing_package("open_topic()", "arrow", error) from None
    if not isinstance(topic, str):
        raise TypeError(f"topic must be a str, not {topic!r}")
    paths = _paths(directories)
    with ExitStack() as opened:
        logs = {
            number: opened.enter_context(open_log(directory))
            for number, directory in sorted(_directories_of(topic, [os.path.abspath(path) for path in paths]).items())
        }
        result = Topic(topic, logs, columns, isolation)
        opened.pop_all()
        return result


def _paths(directories: Path | Sequence[Path]) -> list[Path]:
    """Raises TypeError."""
    if isinstance(directories, str | os.PathLike):
        return [directories]
    paths = list(directories) if isinstance(directories, Iterable) else None
    if paths is None or not all(isinstance(path, str | os.PathLike) for path in paths):
        raise TypeError(f"directories must be a path, or a list of them, not {directories!r}")
    return paths


def _directories_of(topic: str, paths: Sequence[str]) -> dict[int, str]:
    """The directory of each partition of the topic.  Raises what open_topic() raises."""
    found: dict[int, str] = {}
    others = set()
    for path in paths:
        names = list_directory(path)
        journal = os.path.join(path, JOURNAL_FILE)
        if exists(journal):
            raise CorruptFile(
                f"{journal}: a load is not finished, and some of its segments are not there yet.  Try again later; if "
                "no load runs, any kcore broker or kcore.open_log(path, 'a') finishes it"
            )
        for name in names:
            parsed, directory = parse_partition_directory(name), os.path.join(path, name)
            if parsed is None or parsed.mark or not is_directory(directory):
                continue
            others.add(parsed.topic_partition.topic)
            if parsed.topic_partition.topic != topic:
                continue
            if (other := found.setdefault(parsed.topic_partition.partition, directory)) != directory:
                raise CorruptFile(f"{parsed.topic_partition} is both in {other} and in {directory}")
    if not found:
        places = ", ".join(paths)
        is_partition = any(parse_partition_directory(os.path.basename(path)) is not None for path in paths)
        hint = _PARTITION_HINT if is_partition and not others else nearest(topic, others)
        raise FileNotFoundError(errno.ENOENT, f"no partition of topic {topic!r}{hint}", places)
    return found
