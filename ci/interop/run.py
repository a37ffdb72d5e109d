"""run.py JARS CLASSES [DIR]: what kcore wrote, as Apache Kafka's own programs see it.

1. Directories written through the Python API: Kafka's DumpLogSegments must read them without one complaint, and must
   see what `kcore dump` sees.
2. A kcore broker: Kafka's Java client produces, looks offsets up, consumes alone and as a group (InteropClient.java);
   the directory that the broker leaves is then held against DumpLogSegments too.
The directories stay in DIR when it is given.
"""

from __future__ import annotations

import json
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kcore
from kcore.log.log_config import LogConfig
from kcore.log.log_offset_metadata import AppendOrigin
from kcore.record.control_record import ControlRecordType, EndTransactionMarker
from kcore.record.record_batch_builder import RecordBatchBuilder

HERE = Path(__file__).resolve().parent
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
NOW = 1_700_000_000_000
SMALL = LogConfig(segment_bytes=20_000, index_interval_bytes=1_000, segment_index_bytes=4_096)

#: Lines that say nothing bad.  Kafka's tool starts its count of offsets at -1, so that it calls every segment that does
#: not begin at 0 non-consecutive, its own too.
HARMLESS = re.compile(
    r"Dumping .*|Log starting offset: \d+|baseOffset: .* isvalid: true|\| offset: .*|offset: \d+ position: \d+|"
    r"timestamp: -?\d+ offset: \d+|version: 0 producerId: .*|producerId: .*|.* is empty\.|.* passed sanity check\.|"
    r"Non-consecutive offsets in .*|  -1 is followed by \d+"
)
PAIR = re.compile(r"(\w+): (\S+)")


def batch(rng: random.Random, count: int, codec: str = "none", **options: Any) -> bytearray:
    """A producer's batch of odd records, offsets from 0."""
    builder = RecordBatchBuilder(compression=codec, **options)
    for n in range(count):
        builder.append(
            rng.choice([None, b"", rng.randbytes(rng.randint(1, 30)), b"abcdef" * rng.randint(1, 80)]),
            rng.choice([None, b"", f"key-{n}".encode()]),
            timestamp=NOW + rng.randint(-3000, 3000),
            headers=rng.choice([(), (("h", b"v"), ("h", None), ("", b""))]),
        )
    return builder.build()


def marker(kind: ControlRecordType, producer_id: int, epoch: int) -> bytearray:
    builder = RecordBatchBuilder(producer_id=producer_id, producer_epoch=epoch, is_transactional=True, is_control=True)
    end = EndTransactionMarker(kind, 0)
    builder.append(end.value(), end.key(), timestamp=NOW)
    return builder.build()


def write_logs(data: Path) -> None:
    """One partition for each thing that ends up in files: codecs, LogAppendTime, epochs, sequences, transactions,
    truncation, a follower's appends of several batches, a crash."""
    rng = random.Random(20260)
    for codec in CODECS:
        with kcore.open_log(data / f"codec-{codec}-0", "a", config=SMALL) as log:
            for _ in range(250):
                log.append_as_leader(batch(rng, rng.randint(1, 12), codec))
        with kcore.open_log(data / f"codec-{codec}-0", "a", config=SMALL) as log:
            log.append_as_leader(batch(rng, 5, codec), leader_epoch=3)
    append_time = SMALL.from_kafka({"message.timestamp.type": "LogAppendTime"}, SMALL)
    with kcore.open_log(data / "append-time-0", "a", config=append_time) as log:
        for n in range(60):
            log.append_as_leader(batch(rng, 8, CODECS[n % 5]))
    with kcore.open_log(data / "idempotent-0", "a", config=SMALL) as log:
        for n in range(200):
            log.append_as_leader(
                batch(rng, 5, producer_id=7, producer_epoch=1, base_sequence=5 * n), leader_epoch=n // 50
            )
    with kcore.open_log(data / "transactions-0", "a", config=SMALL) as log:
        sequence = [0, 0]
        for n in range(40):
            for p in (0, 1):
                for _ in range(rng.randint(1, 3)):
                    records = batch(
                        rng, 4, "lz4", producer_id=p, producer_epoch=0, base_sequence=sequence[p], is_transactional=True
                    )
                    log.append_as_leader(records)
                    sequence[p] += 4
            log.append_as_leader(batch(rng, 3))
            for p in rng.sample((0, 1), 2):
                kind = ControlRecordType.ABORT if (n + p) % 3 == 0 else ControlRecordType.COMMIT
                log.append_as_leader(marker(kind, p, 0), origin=AppendOrigin.COORDINATOR)
    with kcore.open_log(data / "codec-zstd-0") as leader:
        chunks = b"".join(bytes(segment.slice(0, segment.size).read()) for segment in leader.segments)
        batches = [bytes(found.buffer) for found in kcore.MemoryRecords(chunks).batches]
    with kcore.open_log(data / "follower-0", "a", config=SMALL) as log:
        for start in range(0, len(batches), 7):
            log.append_as_follower(b"".join(batches[start : start + 7]))
        log.truncate_to(kcore.MemoryRecords(batches[len(batches) // 2]).first_offset)
        log.append_as_leader(batch(rng, 9), leader_epoch=5)
    # What a crash leaves: files as they are while the log is open, and half a batch at the end.
    with kcore.open_log(data / "open-0", "a", config=SMALL) as log:
        for _ in range(90):
            log.append_as_leader(batch(rng, 6, "snappy"))
        shutil.copytree(data / "open-0", data / "crashed-0")
    last = max((data / "crashed-0").glob("*.log"))
    last.write_bytes(last.read_bytes() + bytes(batch(rng, 6))[:-10])
    (data / ".kafka_cleanshutdown").unlink()
    with kcore.open_log(data / "crashed-0", "a", config=SMALL) as log:
        log.append_as_leader(batch(rng, 6))


class KafkaTool:
    """Kafka's own programs, from the jars."""

    def __init__(self, jars: str, classes: str) -> None:
        log4j = f"-Dlog4j2.configurationFile={HERE / 'log4j2.xml'}"
        self.java = ["java", "-Xmx512M", log4j, "-cp", f"{jars}/*:{classes}"]

    def dump(self, files: list[Path], *options: str) -> str:
        command = [*self.java, "org.apache.kafka.tools.DumpLogSegments", *options, "--files", ",".join(map(str, files))]
        result = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        if result.returncode:
            sys.exit(f"DumpLogSegments {' '.join(options)} exits {result.returncode}:\n{result.stdout[-4000:]}")
        return result.stdout

    def client(self, bootstrap_servers: str) -> None:
        subprocess.run([*self.java, "InteropClient", bootstrap_servers], check=True, timeout=600)


def complaints(output: str) -> list[str]:
    return [line for line in output.splitlines() if line.strip() and not HARMLESS.fullmatch(line)]


def batches_of_kafka(output: str) -> Iterator[tuple[str, dict[str, str]]]:
    """(file, fields) of each batch and record line."""
    file = ""
    for line in output.splitlines():
        if line.startswith("Dumping "):
            file = line.removeprefix("Dumping ")
        elif line.startswith(("baseOffset: ", "| offset: ")):
            yield file, dict(PAIR.findall(line))


def batches_of_kcore(data: Path) -> Iterator[tuple[str, dict[str, str]]]:
    """The same of `kcore dump --json`."""
    command = [sys.executable, "-m", "kcore.tools.main", "dump", "--json", str(data)]
    output = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
    for line in output.splitlines():
        event = json.loads(line)
        if event["type"] == "batch":
            yield event["file"], event | {event["timestampType"]: event["maxTimestamp"]}
        elif event["type"] == "record":
            yield event["file"], event | {event["timestampType"]: event["timestamp"]}


COMPARED = {"baseOffset", "lastOffset", "count", "baseSequence", "lastSequence", "producerId", "producerEpoch"}
COMPARED |= {"partitionLeaderEpoch", "position", "CreateTime", "LogAppendTime", "size", "magic", "compresscodec", "crc"}
COMPARED |= {"offset", "keySize", "valueSize", "sequence", "endTxnMarker"}


def sorted_out(found: Iterator[tuple[str, dict[str, Any]]]) -> dict[str, list[dict[str, str]]]:
    files: dict[str, list[dict[str, str]]] = {}
    for file, fields in found:
        files.setdefault(file, []).append({name: str(fields[name]) for name in COMPARED if name in fields})
    return files


def check_directory(tool: KafkaTool, data: Path, name: str) -> None:
    """DumpLogSegments has nothing to say against any file, and reads what we read."""
    suffixes = (".log", ".index", ".timeindex", ".txnindex", ".snapshot")
    files = sorted(path for path in data.glob("*-*/*") if path.suffix in suffixes)
    output = tool.dump(files, "--deep-iteration")
    bad = complaints(output)
    for options in ("--index-sanity-check", "--verify-index-only"):
        bad += complaints(tool.dump([path for path in files if path.suffix in (".index", ".timeindex")], options))
    if bad:
        sys.exit("\n".join([f"{name}: Kafka complains:", *bad[:50]]))
    theirs, ours = sorted_out(batches_of_kafka(output)), sorted_out(batches_of_kcore(data))
    if theirs != ours:
        for file in sorted(theirs.keys() | ours.keys()):
            for n, (a, b) in enumerate(zip(theirs.get(file, []), ours.get(file, []), strict=False)):
                if a != b:
                    sys.exit(f"{name}: {file}, line {n}:\n  Kafka {a}\n  kcore {b}")
            if len(theirs.get(file, [])) != len(ours.get(file, [])):
                sys.exit(
                    f"{name}: {file}: Kafka sees {len(theirs.get(file, []))} lines, kcore {len(ours.get(file, []))}"
                )
    segments = sum(path.suffix == ".log" for path in files)
    lines = sum(map(len, theirs.values()))
    print(f"{name}: {segments} segments, {lines} batches and records, {len(files)} files: no complaint")


def verify(data: Path) -> None:
    subprocess.run([sys.executable, "-m", "kcore.tools.main", "verify", str(data)], check=True)


def main() -> None:
    jars, classes, *rest = sys.argv[1:]
    tool = KafkaTool(jars, classes)
    with tempfile.TemporaryDirectory() as temporary:
        work = Path(rest[0]) if rest else Path(temporary)
        written = work / "written"
        written.mkdir(parents=True)
        write_logs(written)
        verify(written)
        check_directory(tool, written, "written through open_log")
        served = work / "served"
        served.mkdir()
        with kcore.Broker(data_dir=str(served)) as broker:
            tool.client(broker.bootstrap_servers)
        verify(served)
        check_directory(tool, served, "written by the broker")


if __name__ == "__main__":
    main()
