"""Processes read a log while the process that owns it appends, truncates and starts anew: none dies, and each record
that one of them gets was written by the owner at that offset at some time.

`python -m tests.system.test_readers_of_a_changing_log --seconds 30` is the long run.
"""

import argparse
import collections
import contextlib
import io
import json
import os
import random
import signal
import subprocess
import sys
import time
import zlib

from kcore.errors import KafkaError
from kcore.log.log_config import LogConfig
from kcore.log.log_segment import LogSegment
from kcore.log.open_log import open_log
from kcore.record.file_records import FileRecords
from kcore.record.memory_records import MemoryRecords
from kcore.record.record_batch_builder import RecordBatchBuilder
from kcore.tools.main import main as kcore

START_MS = 1_700_000_000_000
LARGEST = 20_000  # records of the log
SEGMENT_BYTES = 4 << 20


def value_at(offset, generation):
    """What the owner writes at this offset; a reader can tell from the value alone that it did."""
    stem = b"%d %d " % (offset, generation)
    return stem + b"%08x" % zlib.crc32(stem) + bytes(offset * 7919 % 700)


def check(offset, value):
    written_at, _, rest = value.split(b" ", 2)
    stem = value[: len(value) - len(rest)]
    assert int(written_at) == offset and rest[:8] == b"%08x" % zlib.crc32(stem), (offset, value[:60])


# -- the owner --------------------------------------------------------------------------------------------------------


def own(directory, seconds, seed):
    """Append and truncate until the time is over, and at least three times; prints how often it truncated.  At the end
    there are records."""
    rng = random.Random(seed)
    truncations = 0
    end = time.monotonic() + seconds
    with open_log(directory, "a", config=LogConfig(segment_bytes=SEGMENT_BYTES)) as log:
        while time.monotonic() < end or truncations < 3 or log.log_end_offset - log.log_start_offset < 500:
            target = log.log_end_offset + rng.randrange(500, LARGEST // 3)
            while log.log_end_offset < min(target, LARGEST):
                builder = RecordBatchBuilder(compression=rng.choice(["none", "none", "none", "lz4"]))
                base = log.log_end_offset
                for offset in range(base, base + rng.randrange(1, 60)):
                    builder.append(value_at(offset, truncations), b"%d" % offset, timestamp=START_MS + offset)
                log.append_as_leader(MemoryRecords(builder.build()))
            if rng.randrange(8) == 0 and time.monotonic() < end:
                log.truncate_fully_and_start_at(rng.randrange(100))
            else:
                log.truncate_to(rng.randrange(log.log_end_offset))
            truncations += 1
    print(truncations)


# -- the readers: each reads once, and yields the (offset, value) that it got ------------------------------------------


def read_by_records(directory, rng):
    with open_log(directory) as log:
        for record in log.records():
            yield record.offset, record.value


def read_by_offset(directory, rng):
    with open_log(directory) as log:
        for _ in range(200):
            start = rng.randrange(log.log_start_offset, log.log_end_offset + 1)
            data = log.read(start, 20_000).records
            if isinstance(data, FileRecords):
                for record in data.records():
                    yield record.offset, record.value


def read_by_timestamp(directory, rng):
    with open_log(directory) as log:
        for _ in range(200):
            wanted = rng.choice([START_MS + rng.randrange(LARGEST), -1, -2, -3])
            entry = log.fetch_offset_by_timestamp(wanted)
            if entry is not None and entry.timestamp >= 0:
                assert entry.offset == entry.timestamp - START_MS, entry
                yield entry.offset, None


def read_to_arrow(directory, rng):
    with open_log(directory) as log:
        for table in log.iter_arrow(columns=["offset", "value"], batch_bytes=2 << 20):
            yield from zip(table["offset"].to_pylist(), table["value"].to_pylist(), strict=True)


def segments_of(directory):
    for name in sorted(os.listdir(directory)):
        if name.endswith(".log"):
            segment = LogSegment(directory, int(name[:20]), writable=False)
            try:
                yield segment
            finally:
                segment.close()


def read_columns(directory, rng):
    for segment in segments_of(directory):
        for _ in range(5):
            start = segment.base_offset + rng.randrange(LARGEST // 4)
            columns = segment.columns(start, rng.choice([None, start + rng.randrange(1000)]))
            yield from zip(columns.offset.tolist(), columns.value, strict=True)


def read_places(directory, rng):
    """Lookups and walks over headers alone, which no CRC covers: they only must not die."""
    for segment in segments_of(directory):
        for _ in range(300):
            place = segment.translate_offset(segment.base_offset + rng.randrange(LARGEST // 4))
            assert place is None or place.size > 0
            yield None, None
        segment.scan(lambda table: None, check_crc=rng.random() < 0.5)
        segment.read_next_offset()
        segment.fetch_upper_bound_offset(rng.randrange(SEGMENT_BYTES), 1000)


def run_kcore(*command):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = kcore([str(word) for word in command])
    assert status in (0, 1, 2), (status, err.getvalue())
    return out.getvalue()


def run_verify(directory, rng):
    run_kcore("verify", *rng.choice([[], ["--no-records"]]), directory)
    yield None, None


def run_dump(directory, rng):
    start = rng.randrange(LARGEST // 4)
    for line in run_kcore("dump", "--json", "--values", "--offsets", f"{start}:{start + 500}", directory).splitlines():
        event = json.loads(line)
        if event["type"] == "record":
            yield event["offset"], event["value"].encode()


READERS = [
    read_by_records,
    read_by_offset,
    read_by_timestamp,
    read_to_arrow,
    read_columns,
    read_places,
    run_verify,
    run_dump,
]


def read(reader, directory, seconds, seed):
    """Run a reader again and again, until the time is over and it has got something; prints what it got.  It may meet
    what has changed under it, as a typed error."""
    rng = random.Random(seed)
    rounds, got, errors = 0, 0, collections.Counter()
    while not any(name.endswith(".log") for name in os.listdir(directory)):
        time.sleep(0.01)
    end = time.monotonic() + seconds
    while time.monotonic() < end or (not got and time.monotonic() < end + 60):
        rounds += 1
        try:
            for offset, value in reader(directory, rng):
                if value is not None:
                    check(offset, value)
                got += 1
        except (KafkaError, FileNotFoundError) as error:
            errors[type(error).__name__] += 1
    print(json.dumps({"rounds": rounds, "got": got, "errors": errors}))


# -- all of them ------------------------------------------------------------------------------------------------------


def child(*arguments):
    command = [sys.executable, "-m", __name__ if __name__ != "__main__" else __spec__.name, *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def run(directory, seconds, seed, readers):
    """{reader: what it printed}, after all have ended; AssertionError for one that died."""
    os.makedirs(directory)
    owner = child("own", directory, seconds, seed)
    started = [
        (reader.__name__, child("read", directory, seconds, seed + n, reader.__name__))
        for n, reader in enumerate(readers)
    ]
    results, died = {}, []
    for name, process in [("owner", owner), *started]:
        out, err = process.communicate(timeout=150 + 3 * seconds)
        if process.returncode != 0:
            status = signal.Signals(-process.returncode).name if process.returncode < 0 else process.returncode
            died.append(f"{name}: {status} {err[-2000:]}")
        else:
            results[name] = json.loads(out)
    assert not died, f"seed={seed}: " + "\n".join(died)
    return results


def test_no_reader_dies_of_an_owner_that_truncates(tmp_path):
    seed = random.randrange(10**6)
    results = run(tmp_path / "data" / "orders-0", 4, seed, READERS)
    assert results.pop("owner") > 2
    for name, result in results.items():
        assert result["got"] > 0, f"seed={seed}: {name} {result}"


def main():
    if sys.argv[1:2] == ["own"]:
        own(sys.argv[2], float(sys.argv[3]), int(sys.argv[4]))
    elif sys.argv[1:2] == ["read"]:
        read(globals()[sys.argv[5]], sys.argv[2], float(sys.argv[3]), int(sys.argv[4]))
    else:
        parser = argparse.ArgumentParser(description=__doc__)
        parser.add_argument("directory", help="a partition's directory that does not exist yet")
        parser.add_argument("--seconds", type=float, default=30)
        parser.add_argument("--seed", type=int, default=1)
        options = parser.parse_args()
        for name, result in run(options.directory, options.seconds, options.seed, READERS).items():
            print(name, result)


if __name__ == "__main__":
    main()
