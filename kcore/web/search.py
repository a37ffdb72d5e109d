"""Search: the records of a cluster's partitions, or of logs' files, that have certain bytes."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from kcore.client.topic_fetcher import DEFAULT_SIZES
from kcore.common.topic_partition import TopicPartition
from kcore.errors import KafkaError
from kcore.inspect import log_files
from kcore.inspect.batch_reader import read_batches
from kcore.record.columns import BinaryColumn, RecordColumns
from kcore.record.memory_records import MemoryRecords
from kcore.record.record_batch import Record
from kcore.record.record_columns import columns_of
from kcore.record.record_lines import header_lists, json_lines, numbers, strings
from kcore.web.cluster_reader import ClusterReader
from kcore.web.cluster_records import topic_fetcher
from kcore.web.jobs import Job
from kcore.web.log_records import LogRecords, damage_text
from kcore.web.records import NO_END, Bounds

#: Parts of a record to look into.
FIELDS = ("anywhere", "key", "value", "headers")
#: Of one search: shown on its page; and written for its export, which ends the search.
MOST_SHOWN, MOST_SHOWN_BYTES = 200, 16 << 20
MOST_EXPORTED_BYTES = 1 << 30
MOST_PROBLEMS = 100
_TIMESTAMP_TYPES = {0: "CreateTime", 1: "LogAppendTime", -1: "NoTimestampType"}


class Pattern(NamedTuple):
    """data: the bytes that a record has to have, empty for all records.  field: one of FIELDS."""

    data: bytes
    field: str

    def rows(self, columns: RecordColumns) -> Any:
        """Numbers of the records that match, None for all."""
        import numpy as np

        if not self.data:
            return None
        matches = np.zeros(len(columns), bool)
        for name in ("key", "value"):
            if self.field in ("anywhere", name):
                matches[rows_with(columns[name], self.data)] = True
        if self.field in ("anywhere", "headers"):
            # As they are encoded, with lengths between names and values: these may be in the place of the bytes.
            rows = rows_with(columns["headers"], self.data)
            pairs = header_lists(columns, rows) if len(rows) else []
            has_it = [any(self.data in name or self.data in (value or b"") for name, value in own) for own in pairs]
            matches[rows[np.array(has_it, bool)]] = True
        return np.flatnonzero(matches)


def rows_with(column: BinaryColumn, data: bytes) -> Any:
    """Numbers of the strings that have the bytes, int64, ascending.  All strings are looked through at once, which is
    five times as fast as one after the other."""
    import numpy as np

    text, size = bytes(column.data), column.size
    candidates = np.flatnonzero(size >= len(data))
    at = text.find(data)
    if at < 0 or not len(candidates):
        return candidates[:0]
    if text.count(data) > len(candidates):
        return candidates[[data in (found or b"") for found in strings(column, candidates)]]
    hits = []
    while at >= 0:
        hits.append(at)
        at = text.find(data, at + 1)
    ordered = candidates[np.argsort(column.position[candidates], kind="stable")]
    starts = column.position[ordered]
    slots = starts.searchsorted(hits, "right") - 1
    is_inside = (slots >= 0) & (np.array(hits) + len(data) <= starts[slots] + size[ordered[slots]])
    return np.unique(ordered[slots[is_inside]])


class Found(NamedTuple):
    """A record that matches."""

    topic_partition: TopicPartition
    record: Record


class Matches:
    """What a search has found.  count: all; shown: the first ones; problems: what could not be read."""

    def __init__(self, pattern: Pattern) -> None:
        self._pattern = pattern
        self.count = 0
        self.shown: list[Found] = []
        self.problems: list[str] = []
        #: Whether it ended early because there is so much.
        self.is_cut = False
        self._export = tempfile.TemporaryFile(prefix="kcore-web-")  # noqa: SIM115 - lives as long as the search
        self._exported = self._shown_bytes = 0

    def add(self, tp: TopicPartition, columns: RecordColumns) -> None:
        """Those of the columns that match."""
        rows = self._pattern.rows(columns)
        count = len(columns) if rows is None else len(rows)
        if not count:
            return
        self.count += count
        if len(self.shown) < MOST_SHOWN and self._shown_bytes < MOST_SHOWN_BYTES:
            for found in _records(tp, columns, rows, MOST_SHOWN - len(self.shown)):
                if self._shown_bytes < MOST_SHOWN_BYTES:
                    self.shown.append(found)
                    self._shown_bytes += len(found.record.key or b"") + len(found.record.value or b"")
        lines = json_lines(tp.topic, ascii_only=False)(columns, tp.partition, rows)
        os.pwrite(self._export.fileno(), lines, self._exported)
        self._exported += len(lines)
        self.is_cut = self._exported >= MOST_EXPORTED_BYTES

    def add_problem(self, text: str) -> None:
        if len(self.problems) < MOST_PROBLEMS:
            self.problems.append(text)

    def exported(self) -> Iterator[bytes]:
        """What has been found so far as JSON lines, as `kcore consume --json` prints them."""
        at, end = 0, self._exported
        while at < end:
            chunk = os.pread(self._export.fileno(), min(1 << 20, end - at), at)
            at += len(chunk)
            yield chunk


def _records(tp: TopicPartition, columns: RecordColumns, rows: Any, most: int) -> list[Found]:
    import numpy as np

    rows = np.arange(len(columns))[:most] if rows is None else rows[:most]
    fields = zip(
        numbers(columns["offset"], rows),
        numbers(columns["timestamp"], rows),
        [_TIMESTAMP_TYPES[kind] for kind in numbers(columns["timestampType"], rows)],
        strings(columns["key"], rows),
        strings(columns["value"], rows),
        [
            [(name.decode("utf-8", "surrogateescape"), value) for name, value in pairs]
            for pairs in header_lists(columns, rows)
        ],
        strict=True,
    )
    return [Found(tp, Record(*values)) for values in fields]


# -- a cluster --------------------------------------------------------------------------------------------------------


def search_cluster(
    reader: ClusterReader, topic: str, spans: Mapping[int, Bounds], matches: Matches
) -> Callable[[Job], None]:
    """The work of a job: these offsets of these partitions."""

    def work(job: Job) -> None:
        job.unit, job.result = "offsets", matches
        job.total = sum(span.end - span.start for span in spans.values())
        left = {number: span for number, span in spans.items() if span.start < span.end}
        positions = {number: span.start for number, span in left.items()}
        # A client of its own: it takes long, and others must not wait for it.
        with (
            reader.own_client() as client,
            topic_fetcher(client, topic, left, reader.timeout_ms, DEFAULT_SIZES) as fetcher,
        ):
            while not fetcher.is_done and not matches.is_cut:
                job.advance()
                for fetched in fetcher.poll():
                    columns = columns_of(
                        fetched.records, start_offset=fetched.first_offset, end_offset=fetched.end_offset
                    )
                    matches.add(TopicPartition(topic, fetched.partition), columns)
                    job.advance(fetched.next_offset - positions[fetched.partition])
                    positions[fetched.partition] = fetched.next_offset

    return work


# -- files of logs ----------------------------------------------------------------------------------------------------


#: From the first record of at least one time up to the first of another; None for the log's start, and its end.
Times = tuple[int | None, int | None]


def search_logs(logs: Iterable[LogRecords], times: Times, matches: Matches) -> Callable[[Job], None]:
    """The work of a job: these logs."""

    def work(job: Job) -> None:
        job.result = matches
        spans = []
        for log in logs:
            job.advance()
            start = log.bounds().start if times[0] is None else log.offset_at(times[0])
            end = NO_END if times[1] is None else log.offset_at(times[1])
            files = log.segments(Bounds(start, end))
            job.total += sum(map(log_files.size_of, files))
            spans.append((log, Bounds(start, end), files))
        for log, span, files in spans:
            for path in files:
                _search_file(log.topic_partition, path, span, matches, job)

    return work


def _search_file(tp: TopicPartition, path: str, span: Bounds, matches: Matches, job: Job) -> None:
    at, name = 0, os.sep.join(path.split(os.sep)[-2:])
    for item in read_batches(path):
        if matches.is_cut:
            return
        if not isinstance(item, MemoryRecords):
            matches.add_problem(f"{name}, position {item.position}: {damage_text(item)}")
            continue
        try:
            matches.add(tp, _columns(item, span, path))
        except KafkaError:
            for batch in item.batches:  # one of them hides only itself
                try:
                    matches.add(tp, _columns(batch.buffer, span, path))
                except KafkaError as error:
                    matches.add_problem(f"{name}, position {batch.position}: {error}")
        last = item.batches[-1]
        job.advance(last.position + last.size - at)
        at = last.position + last.size
    job.advance(max(log_files.size_of(path) - at, 0))


def _columns(records: MemoryRecords | memoryview, span: Bounds, path: str) -> RecordColumns:
    return columns_of(records, start_offset=span.start, end_offset=span.end, check_crc=False, source=path)
