"""LeadershipCertainty: whether another broker may lead what this broker leads, without this broker's knowledge.

A broker whose process stood still, or that is cut off from the store, goes on with what it knew.  Its log cannot
acknowledge anything then (acks=all needs followers that have left it), but its memory can answer; and where that would
take a client back in time, it must not.
"""

from __future__ import annotations

from kcore.metadata.store import MetadataStore


class LeadershipCertainty:
    """Thread-safe: each field is written as a whole.  Costs the look at a clock."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        # The lowest broker epoch whose orders count, from the end of a session on; None while none are waited for.
        self._awaited_epoch: int | None = None

    def __call__(self) -> bool:
        """False from when the store may have ended this broker's session until the controller has named the leaders
        anew to the next one's registration."""
        return self._awaited_epoch is None and self._store.is_session_certain

    def session_ended(self, broker_epoch: int) -> None:
        """The session has expired that had this registration."""
        self._awaited_epoch = broker_epoch + 1

    def orders_carried_out(self, broker_epoch: int) -> None:
        """A LeaderAndIsr was, which the controller had sent to this registration: to a new one it first sends all."""
        if self._awaited_epoch is not None and broker_epoch >= self._awaited_epoch:
            self._awaited_epoch = None
