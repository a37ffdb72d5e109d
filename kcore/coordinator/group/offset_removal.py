"""Removing offsets of a group, or the group with all of them: first the tombstones, then what they remove."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from kcore.common.topic_partition import TopicPartition
from kcore.coordinator.group.committed_offset import OffsetAndMetadata
from kcore.coordinator.group.group_metadata import GroupMetadata, GroupState
from kcore.coordinator.group.group_records import offset_commit_key
from kcore.errors import ApiError, NotCoordinator, NotEnoughReplicasAfterAppend, RequestTimedOut

logger = logging.getLogger(__name__)

#: A write that fails with one of these is in the log, and may be committed later.
_IN_LOG = (NotEnoughReplicasAfterAppend, RequestTimedOut)

Tombstones = Sequence[tuple[bytes, bytes | None]]


class OffsetRemoval:
    """One removal; make it under the group's lock, and start() it there.

    values: of the group when it began.  What is committed after that comes after the tombstones in the log, and stays.
    batches: keys of tombstones.  append(batch, callback): to the log, under no lock.
    remove_group: removes the group, which is Dead until then; called under its lock.  None for offsets alone.
    on_removed(error): once all tombstones are committed, or as soon as one cannot be.

    Where tombstones could not be appended, what they should have removed is still there, as for the next coordinator.
    """

    def __init__(
        self,
        group: GroupMetadata,
        values: Mapping[TopicPartition, Sequence[OffsetAndMetadata]],
        batches: Sequence[Tombstones],
        append: Callable[[Tombstones, Callable[[ApiError | None], None]], None],
        remove_group: Callable[[GroupMetadata], None] | None,
        on_removed: Callable[[ApiError | None], None],
    ) -> None:
        self._group = group
        self._values = values
        self._batches = batches
        self._append = append
        self._remove_group = remove_group
        self._on_removed = on_removed
        self._state_before = group.state, group.state_timestamp
        #: Keys that are not in the log.
        self._missing: set[bytes] = set()
        self._error: ApiError | None = None
        #: Batches without an answer, and the end of the removal itself.
        self._num_awaited = len(batches) + 1

    def start(self) -> None:
        group = self._group
        if self._remove_group is not None:
            group.transition_to(GroupState.DEAD)
        for batch in self._batches:
            group.after_unlock(partial(self._append_batch, batch))
        # Not before: the tombstones would remove records of a new group of this id.
        group.after_unlock(self._remove)

    def _append_batch(self, batch: Tombstones) -> None:
        if self._missing:
            self._appended(batch, self._error)  # what is in the log is the first part
        else:
            self._append(batch, partial(self._appended, batch))

    def _appended(self, batch: Tombstones, error: ApiError | None) -> None:
        with self._group:
            if error is not None:
                self._error = self._error or error
                if not isinstance(error, _IN_LOG):
                    self._missing.update(key for key, _ in batch)
            self._one_is_done()

    def _remove(self) -> None:
        with self._group as group:
            if group.is_unloaded:
                self._error = self._error or NotCoordinator(group.group_id)
            else:
                group.remove_offsets(
                    {
                        topic_partition: values
                        for topic_partition, values in self._values.items()
                        if offset_commit_key(group.group_id, topic_partition) not in self._missing
                    }
                )
                if self._remove_group is not None and self._missing:
                    group.state, group.state_timestamp = self._state_before
                elif self._remove_group is not None:
                    self._remove_group(group)
            self._one_is_done()

    def _one_is_done(self) -> None:
        """Under the group's lock."""
        self._num_awaited -= 1
        if self._num_awaited:
            return
        group, error = self._group, self._error
        self._log(error)
        if error is None and group.is_unloaded:
            # Led here again since: whether what was loaded has the tombstones is not known.
            error = NotCoordinator(group.group_id)
        group.after_unlock(lambda: self._on_removed(error))

    def _log(self, error: ApiError | None) -> None:
        """Removals are repeated, by clients every few ms: what has been logged of the group is not logged again."""
        group, before = self._group, self._group.tombstone_error
        group.tombstone_error = None if error is None else f"{type(error).__name__}: {error}"
        if error is not None and group.tombstone_error != before:
            logger.warning("group %s: tombstones were not stored: %s", group.group_id, error)
        elif error is None and before is not None:
            logger.info("group %s: its tombstones are stored now", group.group_id)
