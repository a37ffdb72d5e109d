"""A clock of brokers that a test moves, while the clocks of the clients stay real."""

from __future__ import annotations

import math
import threading
import weakref
from collections.abc import Callable, Collection, Container, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from kcore.common import time
from kcore.testing.waits import PAUSE_S

if TYPE_CHECKING:  # a run of pytest without a broker loads this module too
    from kcore.coordinator.group.group_metadata import GroupMetadata
    from kcore.coordinator.group.live_consumer_group import LiveConsumerGroup
    from kcore.coordinator.group.member_metadata import MemberMetadata
    from kcore.server.broker import Broker
    from kcore.server.requests.handler import Handler
    from kcore.server.requests.request_context import RequestContext

_DAY_MS, _HOUR_MS, _MINUTE_MS, _SECOND_MS = 86_400_000, 3_600_000, 60_000, 1000
#: A member that is connected and sends nothing for so long counts as dead.  Clients send a heartbeat every 3 s, unless
#: their setting heartbeat.interval.ms is another one.
SILENCE_MS = 3500
#: Those of KIP-848 send one as often as the broker says, and may be late by so much.
_LATE_MS = 500
#: A broker is idle when it was so at this many looks, PAUSE_S apart, and did nothing in between.
_IDLE_LOOKS = 3


class SkipTime(time.SkippableTime):
    """The system's clocks until skip() moves them.  Thread-safe.

    Give it to a Broker or a Cluster.  What a client waits for at the broker (fetches, sessions and rebalances of
    groups), retention, the expiry of producers and offsets, and the timestamps that the broker sets follow this clock.
    Idle connections, quotas, and what brokers ask each other follow the system's.
    """

    def __init__(self) -> None:
        super().__init__()
        self._brokers: weakref.WeakKeyDictionary[Broker, _Watched] = weakref.WeakKeyDictionary()
        self._skips = threading.RLock()
        self._real = time.SYSTEM_TIME

    def attach(self, broker: Broker) -> None:
        self._brokers[broker] = _Watched(broker)

    def skip(
        self, *, days: float = 0, hours: float = 0, minutes: float = 0, seconds: float = 0, milliseconds: float = 0
    ) -> None:
        """Move the clock, and return when the brokers have done what this makes due.

        Members of groups stay alive: before a session would end, the skip waits for the next heartbeat of its member,
        and the session goes on as if heartbeats had come all along.  It ends if the member's connection is closed, or
        nothing comes from it for SILENCE_MS of real time.  So long it also waits for those that have to join a
        rebalance.  Raises ValueError unless the clock moves forward.
        """
        ms = days * _DAY_MS + hours * _HOUR_MS + minutes * _MINUTE_MS + seconds * _SECOND_MS + milliseconds
        if ms <= 0:
            raise ValueError(f"skip() of {ms} ms: give a time to skip, as skip(minutes=5)")
        with self._skips:
            self._await_members_and_shift(ms)
            self._call_listeners()

    @contextmanager
    def auto_skip(self) -> Iterator[None]:
        """While the block runs, the clock moves to the next deadline whenever the brokers are idle: no request is at
        work or arrives, and each one that is not answered waits.

        Those of a cluster are idle while each follower waits for records, too, and all know which of them run.  The
        next deadline is mostly the end of a follower's wait, replica.fetch.wait.max.ms.
        """
        stop = threading.Event()
        thread = threading.Thread(target=self._skip_when_idle, args=(stop,), name="kcore-auto-skip", daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()

    # -- auto_skip ----------------------------------------------------------------------------------------

    def _skip_when_idle(self, stop: threading.Event) -> None:
        looks = 0
        activity: list[int] = []
        while not stop.wait(PAUSE_S):
            watched = self._watched()
            # Before the look: what begins after it is not to end at once.
            deadline_ms = min((one.next_deadline_ms for one in watched), default=math.inf)
            activity_before, activity = activity, [one.activity for one in watched]
            is_idle = _are_idle(watched) and activity == activity_before
            looks = looks + 1 if is_idle else 0
            if looks >= _IDLE_LOOKS:
                looks = 0
                self._move_to(deadline_ms)

    def _move_to(self, deadline_ms: float) -> None:
        ms = deadline_ms - self.hi_res_clock_ms()
        if 0 < ms < math.inf:
            with self._skips:
                self._await_members_and_shift(ms)
                self._call_listeners()

    # -- members ------------------------------------------------------------------------------------------

    def _await_members_and_shift(self, ms: float) -> None:
        """Have the sessions go on that would end within ms, of members that are alive, and let those act for whom a
        rebalance waits, for as long as a member may be silent; then move the clock.

        No group can change between the two: a heartbeat of the time before would end its member's session after it.
        """
        since_ms = self._real.hi_res_clock_ms()
        while True:
            # Whose session ends right after the move has no time left for a heartbeat.
            watched = self._watched()
            silence_ms = max((one.silence_ms for one in watched), default=SILENCE_MS)
            target_ms = self.hi_res_clock_ms() + ms + silence_ms
            with ExitStack() as locks:
                for one in watched:
                    one.lock_groups(locks)
                awaited = [(one, sign) for one in watched for sign in one.awaited_signs(target_ms, since_ms)]
                is_time_over = self._real.hi_res_clock_ms() - since_ms > silence_ms
                if is_time_over:
                    for one, sign in awaited:
                        one.give_up(sign)
                if is_time_over or not awaited:
                    self._shift(ms)
                    return
            self._real.sleep(PAUSE_S * 1000)

    def _watched(self) -> list[_Watched]:
        return [watched for broker, watched in list(self._brokers.items()) if not broker.has_stopped]


def _are_idle(watched: Collection[_Watched]) -> bool:
    """Whether the brokers wait, for clients and for each other.

    A follower that copies what it was sent, or is about to ask for more, has no fetch that waits at its leader.  A
    broker that others take for alive and that does not run is about to be replaced, in real time.
    """
    running = {one.broker_id for one in watched}
    if not all(one.is_idle and running.issuperset(one.alive_brokers) for one in watched):
        return False
    num_fetchers = sum(one.num_fetchers(running) for one in watched)
    return num_fetchers == sum(one.num_waiting_followers for one in watched)


class _SignOfLife(NamedTuple):
    """at_ms: by the system's clock."""

    at_ms: float
    context: RequestContext

    @property
    def is_connected(self) -> bool:
        return not self.context.is_abandoned


class _AwaitedSign(NamedTuple):
    """What a member is to send, or do, before the clock moves.

    after: its last sign of life, or the generation of the group whose rebalance waits for it.
    """

    group_id: str
    member_id: str
    after: _SignOfLife | int | None


class _Watched:
    """A running broker: whether it is idle, and whether the members of its groups are alive."""

    def __init__(self, broker: Broker) -> None:
        from kcore.protocol.api_keys import ApiKey

        running = broker.running
        self.broker_id = broker.broker_id
        self._metadata_cache, self._replica_manager = running.base.metadata_cache, running.base.replica_manager
        self._fetchers = running.membership.fetchers
        self._coordinator = running.services.group_coordinator
        self._pool = running.services.request_handler_pool
        self._timer = running.base.background.timer
        self._last_heard: dict[tuple[str, str], _SignOfLife] = {}
        self._given_up: set[_AwaitedSign] = set()
        self._pollers = running.server.watch_pollers()
        signs = {ApiKey.JOIN_GROUP, ApiKey.SYNC_GROUP, ApiKey.HEARTBEAT, ApiKey.CONSUMER_GROUP_HEARTBEAT}
        for api_key in signs & set(running.apis.served):  # kcore.act.like may leave some out
            running.apis.replace_handler(api_key, lambda handler: _ListeningHandler(handler, self._hear))

    def _hear(self, context: RequestContext, group_id: str, member_id: str) -> None:
        self._last_heard[group_id, member_id] = _SignOfLife(time.SYSTEM_TIME.hi_res_clock_ms(), context)

    def lock_groups(self, locks: ExitStack) -> None:
        """Until locks are closed no group changes."""
        for group in self._coordinator.manager.groups():
            locks.enter_context(group)

    def awaited_signs(self, target_ms: float, since_ms: float) -> list[_AwaitedSign]:
        """Of members that may be alive, and whose sessions end before target_ms, or for whom a rebalance waits.

        The sessions of those that have given a sign since since_ms (by the system's clock) are prolonged.  After
        lock_groups().
        """
        groups = self._coordinator.manager.groups()
        awaited = (sign for group in groups for sign in self._awaited_of(group, target_ms, since_ms))
        return [sign for sign in awaited if sign not in self._given_up]

    def _awaited_of(self, group: GroupMetadata, target_ms: float, since_ms: float) -> Iterator[_AwaitedSign]:
        """Of one group."""
        if group.consumer is not None:
            yield from self._awaited_consumers(group.group_id, group.consumer, target_ms, since_ms)
        for member_id, member in group.members.items():
            heard = self._last_heard.get((group.group_id, member_id))
            if heard is not None and not heard.is_connected:
                continue
            if _is_awaited_in_rebalance(group, member):
                yield _AwaitedSign(group.group_id, member_id, group.generation_id)
            elif member.awaiting_join is None and member.awaiting_sync is None:
                if heard is not None and heard.at_ms >= since_ms:
                    deadline_ms = target_ms + member.session_timeout_ms
                    member.session_deadline_ms = max(member.session_deadline_ms, deadline_ms)
                elif member.session_deadline_ms <= target_ms:
                    yield _AwaitedSign(group.group_id, member_id, heard)

    def _awaited_consumers(
        self, group_id: str, group: LiveConsumerGroup, target_ms: float, since_ms: float
    ) -> Iterator[_AwaitedSign]:
        """Of a group of KIP-848, whose members may use the classic protocol."""
        for member_id, session in group.sessions.items():
            heard = self._last_heard.get((group_id, member_id))
            if heard is not None and not heard.is_connected:
                continue
            member = group.value.members[member_id]
            has_to_rejoin_or_sync = session.rejoin_task is not None or session.sync_task is not None
            if member.revoking or has_to_rejoin_or_sync:
                yield _AwaitedSign(group_id, member_id, member.epoch)
            elif heard is not None and heard.at_ms >= since_ms:
                deadline_ms = target_ms + self._coordinator.config.consumer_session_timeout_ms
                session.deadline_ms = max(session.deadline_ms, deadline_ms)
            elif session.deadline_ms <= target_ms:
                yield _AwaitedSign(group_id, member_id, heard)

    @property
    def silence_ms(self) -> float:
        """After how long without a sign a member counts as dead."""
        if all(group.consumer is None for group in self._coordinator.manager.groups()):
            return SILENCE_MS
        return max(SILENCE_MS, self._coordinator.config.consumer_heartbeat_interval_ms + _LATE_MS)

    def give_up(self, sign: _AwaitedSign) -> None:
        """It did not come in time: from now on nobody waits for it."""
        self._given_up.add(sign)

    @property
    def is_idle(self) -> bool:
        return self._pool.is_idle and not self._timer.is_advancing and all(poller.waits for poller in self._pollers)

    @property
    def alive_brokers(self) -> list[int]:
        """As its metadata have them."""
        return self._metadata_cache.snapshot.broker_ids()

    @property
    def num_waiting_followers(self) -> int:
        """How many fetches of followers wait here for records."""
        return self._replica_manager.delayed_log_end_fetch_purgatory.delayed

    def num_fetchers(self, leaders: Container[int]) -> int:
        """How many fetches it has to have waiting at these leaders."""
        threads = {} if self._fetchers is None else self._fetchers.threads()
        return sum(key.leader_id in leaders and thread.partition_count > 0 for key, thread in threads.items())

    @property
    def activity(self) -> int:
        """A number that changes when a connection does something."""
        return sum(poller.turns for poller in self._pollers)

    @property
    def next_deadline_ms(self) -> float:
        deadline_ms = self._timer.next_deadline_ms
        return math.inf if deadline_ms is None else deadline_ms


def _is_awaited_in_rebalance(group: GroupMetadata, member: MemberMetadata) -> bool:
    if group.state.name == "PREPARING_REBALANCE":
        return member.awaiting_join is None
    return group.state.name == "COMPLETING_REBALANCE" and member.member_id in group.pending_sync_members


class _ListeningHandler:
    """Notes who has sent a request, and hands it on."""

    def __init__(self, handler: Handler, hear: Callable[[RequestContext, str, str], None]) -> None:
        self._handler, self._hear = handler, hear
        self.runs_on = handler.runs_on
        self.error_response = handler.error_response

    def handle(self, context: RequestContext, body: Any) -> None:
        self._handler.handle(context, body)
        # Afterwards: the handler begins the session anew, by the clock as it was.
        self._hear(context, body.group_id, body.member_id)
