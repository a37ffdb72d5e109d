"""FetchSessionHandler: a follower's side of an incremental fetch session (SESS-02..04, SESS-10..13, RFT-14, RFT-17).

A state machine without I/O: next_request() chooses the partitions that the request must name out of all; on_reply(),
on_error() and on_failure() process the outcome.  The leader's side is server/requests/fetch_session.py.

Source: FetchSessionHandler, Kafka 2.4-4.x; KIP-227.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from typing import NamedTuple

from kcore.common.topic_partition import TopicPartition
from kcore.errors import ApiError, FetchSessionIdNotFound
from kcore.replica.fetch_params import FetchPartitionData

logger = logging.getLogger(__name__)

#: No session, and the epoch of a full request that asks for one (SESS-01).
NO_SESSION = 0
INITIAL_EPOCH = 0
_MAX_EPOCH = 2**31 - 1


class SessionRequest(NamedTuple):
    """What a Fetch says of its session.  A full one (epoch 0) sends all partitions and closes the session it names.

    to_forget: the partitions that are gone, as the session has them.
    """

    session_id: int
    epoch: int
    to_send: Mapping[TopicPartition, FetchPartitionData]
    to_forget: Mapping[TopicPartition, FetchPartitionData]


class FetchSessionHandler:
    """One session with one leader; one request at a time.  Not thread-safe.

    The cost of an incremental request depends on what has changed, if the caller passes that to next_request().
    """

    def __init__(self) -> None:
        self.session_id = NO_SESSION
        self.epoch = INITIAL_EPOCH
        self._partitions: Mapping[TopicPartition, FetchPartitionData] = {}

    def next_request(
        self,
        partitions: Mapping[TopicPartition, FetchPartitionData],
        changed: Collection[TopicPartition] | None = None,
    ) -> SessionRequest | None:
        """What to send in order to fetch these partitions; None if there is nothing to fetch and to forget (RFT-14).
        In a session a topic keeps its id: one with another id begins a new session.

        changed: which partitions may differ from the last call's, those that are gone included; None: any may.  The
        mapping is kept until the next call, and must not change.
        """
        previous, self._partitions = self._partitions, partitions
        if self.epoch == INITIAL_EPOCH:
            return self._full_request()
        if changed is None:
            changed = () if partitions is previous else previous.keys() | partitions.keys()
        to_send: dict[TopicPartition, FetchPartitionData] = {}
        to_forget: dict[TopicPartition, FetchPartitionData] = {}
        for tp in changed:
            data, before = partitions.get(tp), previous.get(tp)
            if data is None:
                if before is not None:
                    to_forget[tp] = before
            elif before is not None and data.topic_id is not before.topic_id and data.topic_id != before.topic_id:
                self._close_and_begin_anew()
                return self._full_request()
            elif data != before:
                to_send[tp] = data
        if not partitions and not to_forget:
            return None
        return SessionRequest(self.session_id, self.epoch, to_send, to_forget)

    def _full_request(self) -> SessionRequest | None:
        return SessionRequest(self.session_id, INITIAL_EPOCH, self._partitions, {}) if self._partitions else None

    def on_reply(self, session_id: int, partitions: Collection[TopicPartition], throttle_ms: int = 0) -> bool:
        """Take a reply without a top-level error, about these partitions; False if it must be discarded (SESS-12)."""
        if self.epoch == INITIAL_EPOCH:
            if not partitions and throttle_ms > 0:
                self._begin_anew()  # SESS-13
                return False
            if len(partitions) != len(self._partitions) or not all(tp in self._partitions for tp in partitions):
                logger.warning("a full fetch of %d partitions was answered for others", len(self._partitions))
                self._begin_anew()
                return False
            self.session_id = session_id
            self.epoch = 1 if session_id != NO_SESSION else INITIAL_EPOCH
            return True
        unknown = [tp for tp in partitions if tp not in self._partitions]
        if unknown:
            logger.warning("fetch session %d was answered for %s, which it does not have", self.session_id, unknown[0])
            self._close_and_begin_anew()
            return False
        if session_id == NO_SESSION:
            self._begin_anew()  # the leader has closed it
        else:
            self.epoch = 1 if self.epoch == _MAX_EPOCH else self.epoch + 1
        return True

    def on_error(self, error: ApiError) -> None:
        """The reply was an error for the whole request (SESS-10, SESS-11): the next one is full (RFT-17)."""
        logger.info("fetch session %d, epoch %d: %s", self.session_id, self.epoch, error)
        if isinstance(error, FetchSessionIdNotFound):
            self._begin_anew()
        else:
            self._close_and_begin_anew()

    def on_failure(self) -> None:
        """No reply came, or an invalid one (SESS-11): whether the leader's epoch has moved on is not known."""
        self._close_and_begin_anew()

    def _begin_anew(self) -> None:
        self.session_id, self.epoch = NO_SESSION, INITIAL_EPOCH

    def _close_and_begin_anew(self) -> None:
        self.epoch = INITIAL_EPOCH
