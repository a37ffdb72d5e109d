"""What a broker counts on its hot paths: events and amounts of a topic, and how long requests took.

Each method changes its numbers as C integers and calls nothing, so the GIL makes it atomic: no count is lost between
threads, and none takes a lock (docs/decisions/0018-metrics-count-under-the-gil.md has what the others cost).
"""

from libc.stdint cimport INT64_MAX, int64_t
from libc.string cimport memset
from posix.time cimport CLOCK_MONOTONIC, clock_gettime, timespec


cdef class Meter:
    """How often something happened, or how much of it."""

    cdef readonly int64_t count

    def mark(self, int64_t amount=1):
        self.count += amount


cdef class TopicMeters:
    """The traffic of one topic on this broker.  Bytes are those of record batches as they are in the log."""

    cdef readonly int64_t messages_in
    cdef readonly int64_t bytes_in
    cdef readonly int64_t bytes_out
    cdef readonly int64_t bytes_rejected
    cdef readonly int64_t replication_bytes_in
    cdef readonly int64_t replication_bytes_out
    cdef readonly int64_t reassignment_bytes_in
    cdef readonly int64_t produce_requests
    cdef readonly int64_t failed_produce_requests
    cdef readonly int64_t produce_message_conversions
    cdef readonly int64_t fetch_requests
    cdef readonly int64_t failed_fetch_requests
    cdef readonly int64_t fetch_message_conversions

    def produced(self, int64_t messages, int64_t size):
        """A producer's records were appended to a partition."""
        self.produce_requests += 1
        self.messages_in += messages
        self.bytes_in += size

    def produce_refused(self, bint is_failure=False, int64_t rejected_bytes=0):
        """A producer's records were not appended; is_failure: by an error that Kafka's protocol does not know."""
        self.produce_requests += 1
        self.failed_produce_requests += is_failure
        self.bytes_rejected += rejected_bytes

    def read(self, int64_t size, int64_t replica_id):
        """A partition was read for a Fetch request, and so many bytes are to be sent.

        replica_id: of the follower, -1 and -2 for a consumer; -3 (a move between directories) is no request.
        """
        if replica_id >= -2:
            self.fetch_requests += 1
        self._send(size, replica_id)

    def not_sent(self, int64_t size, int64_t replica_id):
        """What was read goes nowhere: the request waits, and will be read again."""
        self._send(-size, replica_id)

    cdef void _send(self, int64_t size, int64_t replica_id) noexcept:
        if replica_id >= 0:
            self.replication_bytes_out += size
        elif replica_id >= -2:
            self.bytes_out += size

    def read_failed(self, bint is_failure=False):
        """The same, with an error; is_failure: one that Kafka's protocol does not know."""
        self.fetch_requests += 1
        self.failed_fetch_requests += is_failure

    def replicated_in(self, int64_t size, bint is_reassignment=False):
        """A leader's records were appended here."""
        self.replication_bytes_in += size
        if is_reassignment:
            self.reassignment_bytes_in += size

    def converted(self, int64_t produced=0, int64_t fetched=0):
        """Records were converted: of a producer before the append, or for a consumer after the read."""
        self.produce_message_conversions += produced
        self.fetch_message_conversions += fetched

    def add(self, TopicMeters other not None):
        """Add all counts of another one."""
        self.messages_in += other.messages_in
        self.bytes_in += other.bytes_in
        self.bytes_out += other.bytes_out
        self.bytes_rejected += other.bytes_rejected
        self.replication_bytes_in += other.replication_bytes_in
        self.replication_bytes_out += other.replication_bytes_out
        self.reassignment_bytes_in += other.reassignment_bytes_in
        self.produce_requests += other.produce_requests
        self.failed_produce_requests += other.failed_produce_requests
        self.produce_message_conversions += other.produce_message_conversions
        self.fetch_requests += other.fetch_requests
        self.failed_fetch_requests += other.failed_fetch_requests
        self.fetch_message_conversions += other.fetch_message_conversions


# Buckets of a histogram: four for each power of two of nanoseconds, so a percentile is at most 25 % too large.
cdef enum:
    BUCKETS = 256
    VERSIONS = 64


cdef inline int bucket_of(int64_t ns) noexcept nogil:
    cdef int power = 0
    if ns < 4:
        return <int>ns if ns > 0 else 0
    while ns >> (power + 1):
        power += 1
    return 4 * power + <int>((ns >> (power - 2)) & 3)


cdef inline int64_t upper_end(int bucket) noexcept nogil:
    """The first ns that is above the bucket."""
    cdef int power = bucket // 4
    if power < 2:
        return bucket + 1
    if power == 62:
        return INT64_MAX
    return (<int64_t>1 << power) + ((<int64_t>(bucket % 4) + 1) << (power - 2))


cdef inline int64_t now_ns() noexcept nogil:
    cdef timespec now
    clock_gettime(CLOCK_MONOTONIC, &now)
    return <int64_t>now.tv_sec * 1_000_000_000 + now.tv_nsec


cdef class TimeHistogram:
    """How long something took, since the broker started.

    begin() and end() around it; or update(ns).  CLOCK_MONOTONIC: nothing is decided by these times.
    """

    cdef readonly int64_t count
    cdef int64_t _sum
    cdef int64_t _min
    cdef int64_t _max
    cdef int64_t _counts[BUCKETS]

    def __cinit__(self):
        memset(self._counts, 0, sizeof(self._counts))

    def begin(self):
        """What end() needs: a time in ns."""
        return now_ns()

    def end(self, int64_t begin_ns):
        """Count the time since begin()."""
        self._update(now_ns() - begin_ns)

    def update(self, int64_t ns):
        self._update(ns)

    cdef void _update(self, int64_t ns) noexcept:
        if ns < 0:
            ns = 0
        if self.count == 0 or ns < self._min:
            self._min = ns
        if ns > self._max:
            self._max = ns
        self.count += 1
        self._sum += ns
        self._counts[bucket_of(ns)] += 1

    def milliseconds(self, *percentiles):
        """[min, max, mean, *percentiles] in ms; a percentile, as 0.99, is the end of the bucket that it is in."""
        cdef int64_t below
        cdef int i
        cdef double rank
        if self.count == 0:
            return [0.0] * (3 + len(percentiles))
        values = [self._min / 1e6, self._max / 1e6, self._sum / 1e6 / self.count]
        for percentile in percentiles:
            rank = percentile * self.count
            below = 0
            for i in range(BUCKETS):
                below += self._counts[i]
                if below >= rank:
                    break
            values.append(min(upper_end(i), self._max) / 1e6)
        return values


cdef class RequestMeters(TimeHistogram):
    """The requests of one API: how many of each version came, and how long it took to answer them."""

    cdef int64_t _versions[VERSIONS]

    def __cinit__(self):
        memset(self._versions, 0, sizeof(self._versions))

    def begin_request(self, int version):
        """Count a request; returns what end() needs when it is answered."""
        if 0 <= version < VERSIONS:
            self._versions[version] += 1
        return now_ns()

    def requests(self):
        """{version: requests}, of the versions that came."""
        return {version: self._versions[version] for version in range(VERSIONS) if self._versions[version]}
