"""Which rules a simulation has exercised: how often each decision was taken.

The rules are pure functions, so they are counted where they are called: each is replaced by one that calls it and notes
the answer.  Partition and FetcherState are counted at the methods that act on the answers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

from kcore.controller.controller_store import ControllerStore
from kcore.controller.partition_state_machine import PartitionStateMachine
from kcore.controller.topic_deletion_manager import TopicDeletionManager
from kcore.errors import KafkaError
from kcore.log.leader_epoch_file_cache import UNDEFINED_EPOCH, UNDEFINED_EPOCH_OFFSET
from kcore.log.log_manager import LogManager
from kcore.log.unified_log import UnifiedLog
from kcore.replica import isr as isr_rules
from kcore.replica import partition
from kcore.replica.fetcher import fetcher_state
from kcore.replica.fetcher.fetcher_state import FetcherState
from kcore.replica.partition import Partition
from kcore.replica.partition_state_store import StoredIsr
from kcore.replica.replica_manager import ReplicaManager
from kcore.server.member.lost_records import IsrDeparture
from kcore.server.member.registration import Registration

#: Decisions that a run of some minutes must have seen, in the order in which they are printed.  EPOCH-06 and EPOCH-10
#: are not among them: a leader of ours has at least its own epoch, and answers an older one with the start of its own.
#: Nor is the cut at the leader's end of a follower that was out of range: a log of ours that has records has epochs, so
#: the leader answers where they diverge.  "go on at our end" is reached by a scenario (test_FT_29), seldom by chance.
EXPECTED = (
    "truncation by EPOCH-08: the same epoch, the smaller end",
    "truncation by EPOCH-09: an epoch between, ask again",
    "diverging epoch in a fetch",
    "out of range: start anew at the leader's start",
    "out of range: go on at our end",
    "follower fenced",
    "ISR: join proposed",
    "ISR: join refused below the high watermark",
    "ISR: join refused below the start of the epoch",
    "ISR: join refused below the log start",
    "ISR: member out of sync",
    "ISR change stored",
    "ISR change refused",
    "ISR change of unknown outcome",
    "leader epoch begins",
    "append refused: NotEnoughReplicas",
    "append refused: NotLeaderOrFollower",
    "reader fenced: FencedLeaderEpoch",
    "reader fenced: UnknownLeaderEpoch",
)


class Coverage:
    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def __str__(self) -> str:
        names = [*EXPECTED, *sorted(self.counts.keys() - set(EXPECTED))]
        return "\n".join(f"{self.counts[name]:9d}  {name}" for name in names)

    @contextmanager
    def counting(self) -> Iterator[Coverage]:
        """Count what happens inside."""
        with ExitStack() as stack:

            def after(owner: Any, name: str, note: Callable[..., None]) -> None:
                stack.enter_context(patch.object(owner, name, _noting(getattr(owner, name), note)))

            after(fetcher_state, "offset_truncation_state", self._on_truncation)
            after(fetcher_state, "out_of_range", self._on_out_of_range)
            after(partition, "diverging_epoch", self._on_diverging)
            after(isr_rules, "may_join_isr", self._on_may_join)
            after(isr_rules, "out_of_sync_replicas", self._on_out_of_sync)
            after(FetcherState, "_on_error", self._on_error)
            after(FetcherState, "_fail", self._on_failed)
            after(Partition, "_isr_stored", self._on_isr_stored)
            after(Partition, "make_leader", self._on_make_leader)
            after(Partition, "append_records_to_leader", self._on_append)
            after(Partition, "_refusal", self._on_refusal)
            after(ControllerStore, "elect", self._on_election)
            after(ControllerStore, "_multi", self._on_controllers_write)
            after(ControllerStore, "withdraw", lambda *call: self._note("controller: an election is given back"))
            after(ReplicaManager, "_check_controller_epoch", self._on_controller_epoch)
            after(Registration, "check_broker_epoch", self._on_controller_epoch)
            after(PartitionStateMachine, "_election", self._on_leader_election)
            after(TopicDeletionManager, "_complete", lambda *call: self._note("controller: a topic is deleted"))
            after(TopicDeletionManager, "mark_ineligible", lambda *call: self._note("controller: a deletion waits"))
            after(IsrDeparture, "_write", self._on_departure)
            after(LogManager, "cut_lost_records", self._on_cut)
            after(UnifiedLog, "forget_lost_records", lambda *call: self._note("lost records: all are there again"))
            yield self

    def _note(self, name: str) -> None:
        self.counts[name] += 1

    def _on_truncation(self, result: Any, leader_epoch: int, leader_end_offset: int, **log: Any) -> None:
        if leader_end_offset == UNDEFINED_EPOCH_OFFSET:
            rule = "EPOCH-06: the leader knows nothing of our epoch"
        elif leader_epoch == UNDEFINED_EPOCH:
            rule = "EPOCH-07: an answer without an epoch"
        elif log["end_offset_for_epoch"](leader_epoch)[1] == UNDEFINED_EPOCH_OFFSET:
            rule = "EPOCH-10: we know no such epoch"
        elif result.completed:
            rule = "EPOCH-08: the same epoch, the smaller end"
        else:
            rule = "EPOCH-09: an epoch between, ask again"
        self._note(f"truncation by {rule}")

    def _on_out_of_range(self, result: Any, *offsets: int) -> None:
        how = "cut at the leader's end" if result.truncates else "go on at our end"
        self._note(f"out of range: {'start anew at the leader' + chr(39) + 's start' if result.starts_anew else how}")

    def _on_diverging(self, result: Any, *question: Any) -> None:
        if result is not None:
            self._note("diverging epoch in a fetch")

    def _on_may_join(
        self,
        result: Any,
        replica: Any,
        isr: Any,
        high_watermark: int,
        epoch_start: int = 0,
        log_start: int = 0,
        is_alive: bool = True,
    ) -> None:
        if result:
            self._note("ISR: join proposed")
        elif replica.broker_id not in isr.maximal:
            end = replica.state.log_end_offset
            where = "the log start"
            if not is_alive:
                self._note("ISR: join of a dead broker refused")
                return
            if end < max(high_watermark, epoch_start):
                where = "the high watermark" if end < high_watermark else "the start of the epoch"
            self._note(f"ISR: join refused below {where}")

    def _on_out_of_sync(self, result: Any, *question: Any) -> None:
        self.counts["ISR: member out of sync"] += len(result)

    def _on_error(self, result: Any, state: Any, tp: Any, error: Any, now_ms: float) -> None:
        self._note(f"follower gets {type(error).__name__}")

    def _on_failed(self, result: Any, state: Any, tp: Any, error: Exception) -> None:
        self._note("follower fenced" if type(error).__name__ == "FencedLeaderEpoch" else "partition failed")

    def _on_isr_stored(self, result: Any, partition: Any, pending: Any, outcome: Any) -> None:
        if isinstance(outcome, StoredIsr):
            self._note("ISR change stored" if outcome.isr == pending.proposed else "ISR change overtaken")
        elif type(outcome).__name__ in ("OperationNotAttempted", "IneligibleReplica"):
            self._note("ISR change refused")
        else:
            self._note("ISR change of unknown outcome")

    def _on_make_leader(self, result: Any, *update: Any) -> None:
        self._note("leader epoch begins")

    def _on_append(self, result: Any, *records: Any) -> None:
        if isinstance(result, KafkaError):
            self._note(f"append refused: {type(result).__name__}")

    def _on_refusal(self, result: Any, *question: Any) -> None:
        self._note(f"reader fenced: {type(result).__name__}")

    def _on_election(self, result: Any, *question: Any) -> None:
        outcome = "not elected" if isinstance(result, Exception) else "elected"
        self._note(f"controller: {outcome}")

    def _on_controllers_write(self, result: Any, *question: Any) -> None:
        if isinstance(result, Exception):
            self._note(f"controller: a write ends with {type(result).__name__}")

    def _on_controller_epoch(self, result: Any, *question: Any) -> None:
        if isinstance(result, Exception):
            self._note(f"controller's request refused: {type(result).__name__}")

    def _on_departure(self, result: Any, departure: Any, states: Any, members: Any) -> None:
        if result is True:
            self.counts["lost records: an ISR was left"] += len(states)

    def _on_cut(self, result: Any, *question: Any) -> None:
        if isinstance(result, int):
            self._note("lost records: a log was cut before it was copied")

    def _on_leader_election(self, result: Any, machine: Any, tp: Any, stored: Any, strategy: Any, *others: Any) -> None:
        outcome = "nobody may lead" if isinstance(result, Exception) else "a leader"
        self._note(f"controller: election, {strategy.value}: {outcome}")


def _noting(function: Callable[..., Any], note: Callable[..., None]) -> Callable[..., Any]:
    def noting(*args: Any, **kwargs: Any) -> Any:
        try:
            result = function(*args, **kwargs)
        except Exception as error:
            note(error, *args, **kwargs)
            raise
        note(result, *args, **kwargs)
        return result

    return noting


__all__ = ["EXPECTED", "Coverage"]
