"""Looks at a cluster now and then: its topics, how fast they grow, and the lag of groups.

Of a large cluster only the topics and groups are sampled that somebody has looked at lately.
"""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise

from kcore.client.group_client import GroupClient, LogEnd
from kcore.common.shutdownable_thread import ShutdownableThread
from kcore.common.text import plain_error
from kcore.common.time import Time
from kcore.common.topic_partition import TopicPartition
from kcore.errors import KafkaError
from kcore.web.catalog import Catalog, catalog_of
from kcore.web.cluster_reader import ClusterReader, group_lags

INTERVAL_MS = 5000
#: One hour.
RING_SIZE = 720
#: A cluster with at most so many partitions is sampled as a whole.
ALL_PARTITIONS = 2000
#: Of a larger one: so many topics, and groups, that were looked at last; topics with at most ALL_PARTITIONS together.
WATCHED = 24
#: The metadata of all topics are asked for again when this many times what it took has passed.
_REST = 40

#: (ms since 1970, value; None where it is not known)
Point = tuple[int, float | None]


class Rings:
    """name -> its last RING_SIZE points.  Of at most `most` names those are kept that were looked at last; without
    `most`, those that keep() was last called with.  Thread-safe."""

    def __init__(self, most: int | None) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._rings: OrderedDict[str, deque[Point]] = OrderedDict()

    def watch(self, name: str) -> None:
        with self._lock:
            self._rings.setdefault(name, deque(maxlen=RING_SIZE))
            self._rings.move_to_end(name)
            while self._most is not None and len(self._rings) > self._most:
                self._rings.popitem(last=False)

    def keep(self, names: Collection[str]) -> None:
        """Have these, and no others."""
        with self._lock:
            for name in self._rings.keys() - set(names):
                del self._rings[name]
            for name in names:
                self._rings.setdefault(name, deque(maxlen=RING_SIZE))

    def names(self) -> list[str]:
        with self._lock:
            return list(self._rings)

    def add(self, name: str, point: Point) -> None:
        """Ignores a name that is not watched any more."""
        with self._lock:
            if name in self._rings:
                self._rings[name].append(point)

    def points(self, name: str) -> list[Point]:
        with self._lock:
            return list(self._rings.get(name, ()))


def rates(points: Sequence[Point]) -> list[Point]:
    """Per second, from one point to the next; None where one of the two is not known or the value fell: the topic was
    made again."""
    found: list[Point] = []
    for (before_ms, before), (at_ms, value) in pairwise(points):
        is_known = before is not None and value is not None and value >= before and at_ms > before_ms
        found.append((at_ms, (value - before) * 1000 / (at_ms - before_ms) if is_known else None))  # type: ignore[operator]
    return found


class Sampler(ShutdownableThread):
    """A thread; its answers may be read on any thread."""

    def __init__(self, reader: ClusterReader, *, time: Time, interval_ms: float = INTERVAL_MS) -> None:
        super().__init__("kcore-web-sampler")
        self._reader = reader
        self._time = time
        self._interval_ms = interval_ms
        #: When the first catalog was made.
        self.first_look_ms: int | None = None
        self.catalog: Catalog | None = None
        #: Why the cluster could not be asked the last time.
        self.problem: str | None = None
        self._has_looked = threading.Event()
        self._looking = threading.Lock()
        self._next_catalog_ms = 0.0
        #: Names that were looked at; sums of end offsets of topics; lags of groups.
        self._wanted_topics = Rings(WATCHED)
        self.topics = Rings(None)
        self.groups = Rings(WATCHED)
        #: The last known end of each partition that is sampled.
        self._ends: dict[TopicPartition, int] = {}

    def do_work(self) -> None:
        self.step()
        self.pause(self._interval_ms)

    def step(self) -> None:
        """Look once."""
        try:
            now_ms = self._time.hi_res_clock_ms()
            if now_ms >= self._next_catalog_ms:
                self.look_again()
                self._next_catalog_ms = now_ms + _REST * (self._time.hi_res_clock_ms() - now_ms)
            self._has_looked.set()
            self._sample_topics()
            self._sample_groups()
            self.problem = None
        except (OSError, KafkaError) as error:
            self.problem = plain_error(error)
        finally:
            self._has_looked.set()

    def look_again(self) -> Catalog:
        """Ask for the metadata of all topics now, after a look of another thread.  Raises OSError, KafkaError."""
        with self._looking:  # else its answer, which may be older, could come later
            cluster = self._reader.ask(GroupClient.describe_cluster)
            self.catalog = catalog = catalog_of(cluster, self._time.milliseconds(), self.catalog)
            self.first_look_ms = catalog.at_ms if self.first_look_ms is None else self.first_look_ms
            return catalog

    def wait_for_catalog(self, timeout_s: float) -> Catalog | None:
        """None if there is none after so long."""
        self._has_looked.wait(timeout_s)
        return self.catalog

    @property
    def samples_all(self) -> bool:
        """Whether every topic is sampled."""
        return self.catalog is not None and self.catalog.partitions <= ALL_PARTITIONS

    def watch_topic(self, name: str) -> None:
        self._wanted_topics.watch(name)

    def watch_group(self, group_id: str) -> None:
        self.groups.watch(group_id)

    def topic_rates(self, name: str) -> list[Point]:
        """Records per second."""
        return rates(self.topics.points(name))

    def cluster_rates(self) -> list[Point]:
        """Records per second of all topics; empty if not all are sampled."""
        if not self.samples_all:
            return []
        sums: dict[int, float] = {}
        for name in self.topics.names():
            for at_ms, value in self.topic_rates(name):
                sums[at_ms] = sums.get(at_ms, 0.0) + (value or 0.0)
        return sorted(sums.items())

    def _sample_topics(self) -> None:
        catalog = self.catalog
        if catalog is None:
            return
        wanted = list(catalog.topics) if self.samples_all else self._wanted_topics.names()[::-1]
        names, left = [], ALL_PARTITIONS
        for name in wanted:
            count = catalog.topics[name].partitions if name in catalog.topics else left + 1
            if count <= left:
                names.append(name)
                left -= count
        self.topics.keep(names)
        tps = [TopicPartition(name, number) for name in names for number in range(catalog.topics[name].partitions)]
        ends: Mapping[TopicPartition, LogEnd] = self._reader.ask(lambda client: client.log_end_offsets(tps))
        known = {tp: end.offset for tp, end in ends.items() if end.offset is not None}
        # A partition whose leader is away has the end that it had.
        self._ends = {tp: known.get(tp, self._ends.get(tp, -1)) for tp in tps}
        now_ms = self._time.milliseconds()
        for name in names:
            own = [self._ends[TopicPartition(name, number)] for number in range(catalog.topics[name].partitions)]
            self.topics.add(name, (now_ms, None if not own or min(own) < 0 else sum(own)))

    def _sample_groups(self) -> None:
        group_ids = self.groups.names()
        if not group_ids:
            return
        lags = self._reader.ask(lambda client: group_lags(client, group_ids))
        now_ms = self._time.milliseconds()
        for group_id, lag in lags.items():
            self.groups.add(group_id, (now_ms, lag.lag))
