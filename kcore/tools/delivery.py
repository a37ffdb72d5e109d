"""Writing records to a topic, and saying at the end what is acknowledged: what `kcore produce` and `kcore replay`
share."""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from kcore.client.topic_leaders import TopicGone, TopicLeaders
from kcore.client.topic_producer import Record, TopicProducer
from kcore.common.random_source import SYSTEM_RANDOM
from kcore.common.text import counted, printable, some_of
from kcore.common.time import SYSTEM_TIME
from kcore.errors import ApiError, KafkaError
from kcore.record.partitioner import partition_for_key
from kcore.tools.bootstrap import note_origin
from kcore.tools.cluster_command import no_partition_text
from kcore.tools.command_line import DAMAGE, INTERRUPTED, OK, USAGE, Arguments, UsageError, with_notes
from kcore.tools.record_input import InputError, InputRecord
from kcore.tools.stop_signals import stop_on_signal

if TYPE_CHECKING:
    from kcore.record.record_batch import CompressionType

#: One request to a leader: less than --timeout, since another broker may lead by then.
REQUEST_MS = 10_000
#: For answers, while nothing can be read.
IDLE_MS = 50
#: Of records that are not acknowledged: reading goes on when some are.
_MOST_PENDING_BYTES = 32 << 20
#: Said when the topic is gone: where the records are.
_WITH_THE_TOPIC = "what was written is gone with the topic that was deleted; nothing is in a new one of its name"
_PERHAPS_IN_THE_NEW_ONE = (
    "the leaders take records by the name of a topic, not by its id: what was acknowledged in the last second may be "
    "in a new topic of the name, everything else was written to the one that was deleted"
)


class Delivery:
    """One run of a command that writes records.  Its subclass reads them."""

    #: What is read.
    noun = "line"

    def __init__(self, args: Arguments, leaders: TopicLeaders, compression: CompressionType) -> None:
        """args: topic, partition, repartition, timeout, quiet and bootstrap.  Raises OSError, KafkaError."""
        self._args = args
        self._stop = threading.Event()
        self._started_ms = SYSTEM_TIME.hi_res_clock_ms()
        #: Records by partition; the first and the last of their offsets, where these are known.
        self.acknowledged: dict[int, int] = {}
        self.offsets: dict[int, tuple[int, int]] = {}
        self._refused = 0
        #: For each record, beside its own.
        self._headers: Sequence[tuple[str, bytes]] = ()
        self._chooser = PartitionChooser(args, leaders)
        self._producer = TopicProducer(
            leaders,
            timeout_ms=args.timeout * 1000,
            request_timeout_ms=min(REQUEST_MS, args.timeout * 1000),
            on_acknowledged=self._note_acknowledged,
            on_refused=self._refuse,
            compression=compression,
        )

    def _produce_all(self) -> None:
        """Read, and give _produce() each record, until _stop is set.  Raises OSError, KafkaError, UsageError."""
        raise NotImplementedError

    def _place(self, tag: tuple[int, int]) -> str:
        """Where a record was read."""
        raise NotImplementedError

    def run(self) -> int:
        try:
            with stop_on_signal(self._stop.set), _rare_collections():
                self._produce_all()
                self._producer.close_batches()
                while self._producer.pending_bytes and not self._stop.is_set():
                    self._producer.poll(IDLE_MS)
                self._producer.finish_requests()
        except (OSError, KafkaError, UsageError) as error:
            note_origin(self._args, error)
            self._say(with_notes(error))
            is_gone = isinstance(error, TopicGone)
            self._summarize(is_whole=False, is_gone=is_gone)
            if is_gone:
                self._say(_WITH_THE_TOPIC if self._producer.is_by_id else _PERHAPS_IN_THE_NEW_ONE)
            return USAGE
        is_whole = not self._stop.is_set()
        self._summarize(is_whole)
        if not is_whole:
            return INTERRUPTED
        return DAMAGE if self._refused else OK

    def _produce(self, tag: tuple[int, int], read: InputRecord) -> None:
        """Raises InputError, OSError, KafkaError."""
        partition = self._chooser.partition(read)
        timestamp = SYSTEM_TIME.milliseconds() if read.timestamp is None else read.timestamp
        headers = [*read.headers, *self._headers]
        if self._producer.append(partition, Record(tag, read.key, read.value, headers, timestamp)):
            self._chooser.on_full_batch()
            self._producer.poll(0)
        while self._producer.pending_bytes > _MOST_PENDING_BYTES and not self._stop.is_set():
            self._producer.close_batches()
            self._producer.poll(IDLE_MS)

    # -- what is said -------------------------------------------------------------------------------------------

    def _note_acknowledged(self, partition: int, base_offset: int, count: int) -> None:
        self.acknowledged[partition] = self.acknowledged.get(partition, 0) + count
        if base_offset >= 0:
            first, last = self.offsets.get(partition, (base_offset, base_offset))
            self.offsets[partition] = min(first, base_offset), max(last, base_offset + count - 1)

    def _refuse(self, record: Record, error: ApiError) -> None:
        self._refuse_line(record.tag, str(error))

    def _refuse_line(self, tag: tuple[int, int], reason: str) -> None:
        self._refused += 1
        self._say(f"{self._place(tag)}: {reason}")

    def _say(self, text: str) -> None:
        print(printable(f"kcore: {text}"), file=sys.stderr, flush=True)

    def _summarize(self, is_whole: bool, is_gone: bool = False) -> None:
        """is_gone: the topic is."""
        if self._producer.uncertain_retries and not self._producer.is_idempotent:
            self._say("some batches were sent again without a producer id: their records may be there twice")
        if self._args.quiet and is_whole and not self._refused:
            return
        count = sum(self.acknowledged.values())
        seconds = max(0.001, (SYSTEM_TIME.hi_res_clock_ms() - self._started_ms) / 1000)
        partitions = [self._partition_text(number) for number in sorted(self.acknowledged)]
        where = f": {some_of(partitions)}" if partitions else ""
        self._say(f"{counted(count, 'record')} acknowledged in {seconds:.3g} s{where}")
        if self._refused:
            self._say(f"{counted(self._refused, self.noun)} not written")
        if (first := self._producer.first_pending()) is not None:
            later = "" if is_gone and self._producer.is_by_id else "; later ones may be written"
            self._say(f"{self._place(first)} is the first that is not acknowledged{later}")
        elif not is_whole:
            self._say("all that was read is acknowledged")

    def _partition_text(self, number: int) -> str:
        text = f"{self._args.topic}-{number} {self.acknowledged[number]}"
        if number not in self.offsets:
            return text
        first, last = self.offsets[number]
        return f"{text} (offset {first})" if first == last else f"{text} (offsets {first} to {last})"


class PartitionChooser:
    """Which partition a record goes to: that of --partition, its own, its key's as Kafka's Java producer chooses it, or
    without a key one after the other, a full batch each."""

    def __init__(self, args: Arguments, leaders: TopicLeaders) -> None:
        self._topic = args.topic
        self._fixed: int | None = args.partition
        self._uses_own = not args.repartition
        self._leaders = leaders
        self._count = len(leaders.partitions)
        self._sticky = SYSTEM_RANDOM.randrange(self._count)
        self.on_full_batch()

    def partition(self, read: InputRecord) -> int:
        """Raises InputError."""
        if self._fixed is not None:
            return self._fixed
        if read.partition is not None and self._uses_own:
            if read.partition >= self._count:
                raise InputError(no_partition_text(self._topic, range(self._count), read.partition))
            return read.partition
        return self._sticky if read.key is None else partition_for_key(read.key, self._count)

    def on_full_batch(self) -> None:
        """The next one that has a leader."""
        for step in range(1, self._count + 1):
            number = (self._sticky + step) % self._count
            if self._leaders.leader(number) is not None:
                self._sticky = number
                return


@contextmanager
def _rare_collections() -> Iterator[None]:
    """Records are no part of a cycle: to look for cycles among them every 700 objects takes 40 % of the time."""
    thresholds = gc.get_threshold()
    gc.set_threshold(200_000, *thresholds[1:])
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)
