"""A partition's directory as Kafka's own classes load it (LogOracle.java), and the same told of a log of kcore's."""

from __future__ import annotations

import subprocess
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO

from kcore.common.time import MockTime
from kcore.log.log_config import LogConfig
from kcore.log.log_file_names import TXN_INDEX_SUFFIX, segment_file
from kcore.log.log_loader import load_log
from kcore.log.open_log import parse_partition_directory
from kcore.log.transaction_index import decode_entries
from kcore.log.unified_log import UnifiedLog
from kcore.record.control_record import control_record_type
from kcore.record.record_batch import Record

NOW = 1_700_000_000_000
#: LogOracle.config has the same.
SMALL = LogConfig(segment_bytes=20_000, index_interval_bytes=1_000, segment_index_bytes=4_096)
DEFAULTS = LogConfig()


class Oracle:
    """A JVM with Kafka's storage classes: a context manager.  What it has to say goes to the file `stderr`.

    config: of the logs, SMALL or DEFAULTS; a segment that a broker has filled needs an index of its size.
    """

    def __init__(self, java: list[str], stderr: Path, config: LogConfig = SMALL) -> None:
        self.config = config
        self._command = [*java, "LogOracle", *(["defaults"] if config is DEFAULTS else [])]
        self._stderr = stderr
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Oracle:
        with open(self._stderr, "wb") as stderr:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr, text=True, encoding="utf-8"
            )
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        assert self._process is not None and self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(60)

    def _pipe(self) -> tuple[IO[str], IO[str]]:
        assert self._process is not None
        assert self._process.stdin is not None and self._process.stdout is not None
        return self._process.stdin, self._process.stdout

    def _ask(self, *words: object) -> list[str]:
        to, answers = self._pipe()
        to.write("\t".join(map(str, words)) + "\n")
        to.flush()
        lines: list[str] = []
        while (line := answers.readline().rstrip("\n")) != ".":
            if not line:
                raise RuntimeError(f"the oracle fell silent, see {self._stderr}:\n{self._stderr.read_text()[-2000:]}")
            lines.append(line)
        return lines

    def load(self, directory: Path, *, clean: bool, recovery_point: int = 0, log_start_offset: int = 0) -> list[str]:
        """What Kafka finds in it; a line "error ..." last when it fails.  Changes the directory as a start does."""
        return self._ask("load", directory, str(clean).lower(), recovery_point, log_start_offset)

    def check(self, directory: Path) -> list[str]:
        """Each file held to Kafka's checks, each segment recovered.  Changes the indexes of the directory."""
        return self._ask("check", directory)

    def write(self, directory: Path, kind: str) -> dict[str, int]:
        """A log that Kafka wrote and has not closed; its log start offset and the base offset of its last segment."""
        lines = self._ask("write", directory, kind)
        if lines[-1].startswith("error"):
            raise RuntimeError(f"{kind}: {lines[-1]}")
        return {name: int(value) for name, value in map(str.split, lines)}


def load(
    directory: Path, *, clean: bool, recovery_point: int = 0, log_start_offset: int = 0, config: LogConfig = SMALL
) -> list[str]:
    """The same of kcore."""
    name = parse_partition_directory(directory.name)
    assert name is not None
    try:
        log = load_log(
            str(directory),
            name.topic_partition,
            config,
            time=MockTime(NOW),
            log_start_offset=log_start_offset,
            recovery_point=recovery_point,
            had_clean_shutdown=clean,
        )
        log.update_high_watermark(log.log_end_offset)
        with log:
            return describe(log)
    except Exception as error:
        return [f"error {type(error).__name__}: {error}"]


def describe(log: UnifiedLog) -> list[str]:
    """The lines of LogOracle's answer to "load"."""
    lines = [f"start {log.log_start_offset}", f"end {log.log_end_offset}", f"stable {log.last_stable_offset}"]
    lines += [f"segment {segment.base_offset} {segment.size}" for segment in log.segments]
    lines += [f"epoch {entry.epoch} {entry.start_offset}" for entry in log.leader_epoch_cache.entries]
    for _, entry in sorted(log.producer_state_manager.producers.items()):
        open_since = -1 if entry.current_txn_first_offset is None else entry.current_txn_first_offset
        words: list[object] = ["producer", entry.producer_id, entry.producer_epoch, entry.coordinator_epoch]
        words += [entry.last_timestamp, open_since, *(entry.batches[-1][:3] if entry.batches else ())]
        lines.append(" ".join(map(str, words)))
    for segment in log.segments:
        path = Path(segment_file(log.directory, segment.base_offset, TXN_INDEX_SUFFIX))
        if path.exists():
            lines += ["aborted " + " ".join(map(str, txn)) for txn in decode_entries(path.read_bytes(), str(path))]
    for batch in log.batches():
        for record in batch.records():
            if record.offset >= log.log_start_offset:
                lines.append(_control(record) if batch.is_control else _record(record))
    lines.append(f"committed {_ranges([record.offset for record in log.records(isolation='read_committed')])}")
    return lines


def _control(record: Record) -> str:
    return f"control {record.offset} {control_record_type(record.key).name}"


def _record(record: Record) -> str:
    words = ["record", record.offset, record.timestamp_type, record.timestamp, _sum(record.key), _sum(record.value)]
    words += [f"{_sum(key.encode())}={_sum(value)}" for key, value in record.headers]
    return " ".join(map(str, words))


def _sum(data: bytes | None) -> str:
    return "null" if data is None else f"{len(data)}:{zlib.crc32(data):x}"


def _ranges(offsets: Iterable[int]) -> str:
    found: list[list[int]] = []
    for offset in offsets:
        if found and offset == found[-1][1] + 1:
            found[-1][1] = offset
        else:
            found.append([offset, offset])
    return ",".join(f"{first}-{last}" for first, last in found)


def first_difference(theirs: Sequence[str], ours: Sequence[str]) -> str | None:
    """What tells the two apart, in a few lines; None if nothing does."""
    if list(theirs) == list(ours):
        return None
    for a, b in zip(theirs, ours, strict=False):
        if a != b:
            return f"Kafka: {a[:300]}\n      kcore: {b[:300]}"
    longer, name = (theirs, "Kafka") if len(theirs) > len(ours) else (ours, "kcore")
    return f"only {name}: {longer[min(len(theirs), len(ours))][:300]}"
