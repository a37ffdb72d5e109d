"""run.py JARS CLASSES [DIR]: kcore's files in Apache Kafka's hands, and Kafka's in kcore's.

1. Directories that kcore wrote (directories.py): Kafka's DumpLogSegments has no complaint and sees what `kcore dump`
   sees; Kafka's storage classes (LogOracle.java) find every file sane, recover them without a cut, and load the same
   log as kcore does, after a clean stop and after an unclean one.
2. Directories that Kafka wrote and a crash or a disk damaged (unclean.py), and the golden ones: both load the same log.
   After random kills of a kcore log both find the same leader epochs.
3. A kcore broker: Kafka's Java client produces, looks offsets up, consumes alone and as a group (InteropClient.java);
   the directory that the broker leaves is held to what Kafka says as in 1.
The directories stay in DIR when it is given.  Any difference ends with status 1.
"""

from __future__ import annotations

import json
import logging
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import kcore  # noqa: E402
from ci.interop import directories, oracle, unclean  # noqa: E402
from ci.interop.oracle import Oracle  # noqa: E402
from kcore.log.checkpoints import LOG_START_OFFSET_CHECKPOINT, OffsetCheckpointFile  # noqa: E402
from kcore.log.open_log import parse_partition_directory  # noqa: E402

GOLDEN = ROOT / "tests" / "golden" / "kafka-log" / "data"

#: Lines that say nothing bad.  Kafka's tool starts its count of offsets at -1, so that it calls every segment that does
#: not begin at 0 non-consecutive, its own too; and so it calls every gap that the cleaner leaves.
HARMLESS = re.compile(
    r"Dumping .*|Log starting offset: \d+|(baseOffset|offset): .* isvalid: true|\| offset: .*|"
    r"offset: \d+ position: \d+|timestamp: -?\d+ offset: \d+|"
    r"version: 0 producerId: .*|producerId: .*|.* is empty\.|.* passed sanity check\.|"
    r"Non-consecutive offsets in .*|  -?\d+ is followed by \d+"
)
#: It looks for the record of a time index entry, and finds none where the cleaner has emptied the batch: Kafka's does.
EMPTIED = re.compile(r"Found timestamp mismatch in :.*/compacted-0/.*\n(  Index timestamp: \d+, log timestamp: -1\n)+")
PAIR = re.compile(r"(\w+): (\S+)")


class KafkaTool:
    """Kafka's own programs, from the jars."""

    def __init__(self, jars: str, classes: str) -> None:
        log4j = f"-Dlog4j2.configurationFile={ROOT / 'ci' / 'interop' / 'log4j2.xml'}"
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
    return [line for line in EMPTIED.sub("", output).splitlines() if line.strip() and not HARMLESS.fullmatch(line)]


def batches_of_kafka(output: str) -> Iterator[tuple[str, dict[str, str]]]:
    """(file, fields) of each batch and record line."""
    file = ""
    for line in output.splitlines():
        if line.startswith("Dumping "):
            file = line.removeprefix("Dumping ")
        elif line.startswith("baseOffset: "):
            yield file, dict(PAIR.findall(line))
        elif line.startswith("| offset: "):
            fields = dict(PAIR.findall(line))
            fields.pop("crc", None)  # of a message of magic 0 or 1
            yield file, {"sequence": "-1"} | fields
        elif line.startswith("offset: ") and "isvalid: " in line:  # magic 0 and 1: a message, compressed or not
            fields = dict(PAIR.findall(line))
            yield file, fields | {"lastOffset": fields.pop("offset")}


def kafka_name(name: str) -> str:
    """As DumpLogSegments writes a name of `kcore dump --json`."""
    if name in ("is_valid", "compress_codec"):
        return name.replace("_", "")
    first, *others = name.split("_")
    return first + "".join(map(str.capitalize, others))


def batches_of_kcore(data: Path) -> Iterator[tuple[str, dict[str, str]]]:
    """The same of `kcore dump --json`."""
    command = [sys.executable, "-m", "kcore.tools.main", "dump", "--json", str(data)]
    output = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
    for line in output.splitlines():
        event = {kafka_name(name): value for name, value in json.loads(line).items()}
        if not event["file"].endswith(".log"):  # what waits for its deletion
            continue
        if event["type"] == "batch" and event["magic"] < 2:
            known = {name: event[name] for name in ("lastOffset", "position", "size", "magic", "compresscodec", "crc")}
            yield event["file"], known | {event["timestampType"]: event["maxTimestamp"]}
        elif event["type"] == "batch":
            yield event["file"], event | {event["timestampType"]: event["maxTimestamp"]}
        elif event["type"] == "record":
            event.setdefault("sequence", -1)
            yield event["file"], event | {event["timestampType"]: event["timestamp"]}


COMPARED = {"baseOffset", "lastOffset", "count", "baseSequence", "lastSequence", "producerId", "producerEpoch"}
COMPARED |= {"partitionLeaderEpoch", "position", "CreateTime", "LogAppendTime", "size", "magic", "compresscodec", "crc"}
COMPARED |= {"offset", "keySize", "valueSize", "sequence", "endTxnMarker"}


def sorted_out(found: Iterator[tuple[str, dict[str, Any]]]) -> dict[str, list[dict[str, str]]]:
    files: dict[str, list[dict[str, str]]] = {}
    for file, fields in found:
        files.setdefault(file, []).append({name: str(fields[name]) for name in COMPARED if name in fields})
    return files


def check_dump(tool: KafkaTool, data: Path) -> list[str]:
    """DumpLogSegments has nothing to say against any file, and reads what we read."""
    suffixes = (".log", ".index", ".timeindex", ".txnindex", ".snapshot")
    files = sorted(path for path in data.glob("*-*/*") if path.suffix in suffixes)
    # It takes the entries that Kafka 2.4 to 3.8 made for appends of several batches for mismatches.
    files = [path for path in files if path.parent.name != "per-append-0" or path.suffix == ".log"]
    output = tool.dump(files, "--deep-iteration")
    bad = complaints(output)
    for options in ("--index-sanity-check", "--verify-index-only"):
        bad += complaints(tool.dump([path for path in files if path.suffix in (".index", ".timeindex")], options))
    theirs, ours = sorted_out(batches_of_kafka(output)), sorted_out(batches_of_kcore(data))
    for file in sorted(theirs.keys() | ours.keys()):
        difference = oracle.first_difference(
            [str(sorted(fields.items())) for fields in theirs.get(file, [])],
            [str(sorted(fields.items())) for fields in ours.get(file, [])],
        )
        if difference:
            bad.append(f"{file}:\n      {difference}")
    segments = sum(path.suffix == ".log" for path in files)
    lines = sum(map(len, theirs.values()))
    verdict = "COMPLAINTS" if bad else "no complaint"
    print(f"  DumpLogSegments: {segments} segments, {lines} batches and records, {len(files)} files: {verdict}")
    return bad


def check_loading(kafka: Oracle, data: Path, work: Path, *, stopped: bool = True) -> list[str]:
    """Both load the same log from every partition directory.  stopped: as after a clean stop, too, and Kafka's classes
    find each file sane."""
    bad = []
    log_starts = OffsetCheckpointFile(str(data / LOG_START_OFFSET_CHECKPOINT)).read()
    for directory in sorted(data.glob("*-*/")):
        name = parse_partition_directory(directory.name)
        if name is None:
            continue
        log_start_offset = log_starts.get(name.topic_partition, 0)
        copy = work / "copy" / directory.name
        wrong, lines = [], []

        def on_a_copy(directory: Path = directory, copy: Path = copy) -> Path:
            shutil.rmtree(copy, ignore_errors=True)
            shutil.copytree(directory, copy)
            return copy

        if stopped:
            lines = kafka.check(on_a_copy())
            if not lines[-1].startswith("checked"):
                wrong.append(f"Kafka's checks: {lines[-1]}")
        for clean in (True, False) if stopped else (False,):
            theirs = kafka.load(on_a_copy(), clean=clean, log_start_offset=log_start_offset)
            lines = oracle.load(on_a_copy(), clean=clean, log_start_offset=log_start_offset, config=kafka.config)
            difference = oracle.first_difference(theirs, lines)
            if difference:
                wrong.append(f"{'clean' if clean else 'unclean'} stop:\n      {difference}")
            elif lines[-1].startswith("error"):
                wrong.append(f"{'clean' if clean else 'unclean'} stop: {lines[-1]}")
        kinds = [line.split()[0] for line in lines]
        counts = ", ".join(f"{kinds.count(kind)} {kind}s" for kind in ("segment", "record", "control", "producer"))
        print(f"  {directory.name:<22} {counts}: {'DIFFERS' if wrong else 'alike'}", flush=True)
        bad += [f"{directory.name}: {what}" for what in wrong]
    return bad


def verify(data: Path, *options: str) -> None:
    subprocess.run([sys.executable, "-m", "kcore.tools.main", "verify", *options, str(data)], check=True)


def prove(tool: KafkaTool, kafka: Oracle, work: Path) -> list[str]:
    print("written by kcore")
    written = work / "written"
    written.mkdir(parents=True)
    directories.write(written)
    # Some were cleaned, which nothing in the directory says; a follower has the gaps of its leader.
    verify(written, "--compacted")
    bad = check_dump(tool, written)
    bad += check_loading(kafka, written, work)
    print("written by kcore until SIGKILL: as it lies, and after kcore has opened it")
    killed = work / "killed"
    directories.write_and_kill(killed / "killed-0")
    bad += check_loading(kafka, killed, work, stopped=False)
    with directories.open_log(killed / "killed-0"):
        pass
    bad += check_loading(kafka, killed, work)
    bad += check_dump(tool, killed)
    print("a load of kcore's that died in the middle of its commit: each partition has all of it or nothing")
    for data in directories.interrupted_loads(work / "interrupted"):
        print(f" {data.name}")
        bad += check_loading(kafka, data, work, stopped=False)
    print("written by Kafka, golden")
    bad += check_loading(kafka, GOLDEN, work)
    print("written by Kafka, not closed, then damaged")
    bad += unclean.prove(kafka, work)
    print("written by kcore, killed at random system calls")
    bad += unclean.prove_epochs(kafka)
    print("written by kcore's broker for Kafka's client")
    served = work / "served"
    served.mkdir()
    # The records are of 2023: retention, which begins 30 s after the start, would delete them under a slow client.
    with kcore.Broker(data_dir=str(served), log_retention_ms=-1) as broker:
        tool.client(broker.bootstrap_servers)
    verify(served)
    return bad + check_dump(tool, served) + check_loading(kafka, served, work)


def main() -> None:
    jars, classes, *rest = sys.argv[1:]
    logging.disable(logging.ERROR)  # what recovery has to say about damage
    tool = KafkaTool(jars, classes)
    with tempfile.TemporaryDirectory() as temporary:
        work = Path(rest[0]) if rest else Path(temporary)
        work.mkdir(exist_ok=True)
        with Oracle(tool.java, work / "oracle.err") as kafka:
            bad = prove(tool, kafka, work)
    if bad:
        sys.exit("\n".join([f"\n{len(bad)} differences from Kafka:", *bad[:40]]))
    print("interop: no difference")


if __name__ == "__main__":
    main()
