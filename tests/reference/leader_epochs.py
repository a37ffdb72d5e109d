"""Which leader epochs a start after a kill finds, from the bytes of the directory: slow, and written independently.

epochs_of_kafka() is Kafka's rule: the entries of the file; then each batch of a segment that may not be on the
disk, if its epoch is higher than all before; then only what starts below the log end; then the log start.  None if the
log ends below its start.
`make interop` compares it with Kafka itself.  epochs_of_kcore() is the same but for what docs/compatibility.md says.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import NamedTuple

Entry = tuple[int, int]  # (epoch, start offset)


class Batch(NamedTuple):
    first: int
    last: int
    epoch: int


def epochs_in_file(directory: Path) -> list[Entry]:
    path = directory / "leader-epoch-checkpoint"
    lines = path.read_text().splitlines()[2:] if path.exists() else []
    return [(int(epoch), int(start)) for epoch, start in map(str.split, lines)]


def batches_in(directory: Path, recovery_point: int = 0) -> list[Batch]:
    """Those of the segments from the one on that holds recovery_point; magic 2, no damage."""
    bases = sorted(int(path.stem) for path in directory.glob("*.log"))
    batches = []
    for base in bases[max([n for n, base in enumerate(bases) if base <= recovery_point], default=0) :]:
        data = (directory / f"{base:020}.log").read_bytes()
        at = 0
        while at < len(data):
            first, size, epoch = struct.unpack_from(">qii", data, at)
            (last_delta,) = struct.unpack_from(">i", data, at + 23)
            batches.append(Batch(first, first + last_delta, epoch))
            at += 12 + size
    return batches


def epochs_of_kafka(directory: Path, recovery_point: int, checkpointed_start: int, log_end: int) -> list[Entry]:
    entries = epochs_in_file(directory)
    for batch in batches_in(directory, recovery_point):
        if batch.epoch > max([epoch for epoch, _ in entries], default=-1):
            entries = [entry for entry in entries if entry[1] < batch.first] + [(batch.epoch, batch.first)]
    ends = [batch.last + 1 for batch in batches_in(directory)] + [int(path.stem) for path in directory.glob("*.log")]
    if ends and max(ends) < checkpointed_start:
        return []  # Kafka deletes the segments
    entries = [entry for entry in entries if entry[1] < log_end]
    below = [entry for entry in entries if entry[1] <= checkpointed_start]
    return [(epoch, checkpointed_start) for epoch, _ in below[-1:]] + entries[len(below) :]


def epochs_of_kcore(directory: Path, recovery_point: int, log_start: int, log_end: int) -> list[Entry]:
    """Batches before the first entry have their own epochs."""
    kafka_epochs = epochs_of_kafka(directory, recovery_point, log_start, log_end)
    first_known = kafka_epochs[0][1] if kafka_epochs else log_end
    before: list[Entry] = []
    epoch_below_start = -1
    for batch in batches_in(directory, recovery_point if epochs_in_file(directory) else 0):
        if batch.last < log_start:
            epoch_below_start = batch.epoch
        elif batch.first < first_known and batch.epoch > max([epoch for epoch, _ in before], default=-1):
            start = log_start if not before and batch.epoch == epoch_below_start else max(batch.first, log_start)
            before.append((batch.epoch, start))
    return before + [entry for entry in kafka_epochs if not before or entry[0] > before[-1][0]]
