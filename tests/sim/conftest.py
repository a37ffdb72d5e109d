"""Histories with a name: each goes well, and breaks an invariant when its rule is taken out."""

from __future__ import annotations

import pytest

from tests.sim import invariants
from tests.sim.events import Event, History, Settings
from tests.sim.shrink import run_history
from tests.sim.simulated import simulated
from tests.sim.transactions import invariants as of_transactions


class Scenario:
    """A history of one partition, whose preferred leader is broker 0, with or without one rule."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, settings: Settings, *events: Event) -> None:
        self._monkeypatch = monkeypatch
        self._history = History(settings, events)
        self._also: list[tuple[object, str, object]] = []

    def goes_well(self) -> None:
        failure = run_history(self._history)
        if failure is not None:
            pytest.fail(str(failure), pytrace=False)

    def also(self, owner: object, rule: str, without: object) -> None:
        """A second place of the same rule, for breaks(): one place alone is enough."""
        self._also.append((owner, rule, without))

    def breaks(self, name: str, owner: object, rule: str, without: object) -> None:
        """With the rule replaced, the invariant of this name is the one that breaks; no other is looked at."""
        with self._monkeypatch.context() as context:
            for place in (*self._also, (owner, rule, without)):
                context.setattr(*place)
            for group in ("OF_CHANGES", "OF_CHANGES_AFTER_CLEAN_ELECTIONS"):
                context.setattr(invariants, group, [f for f in getattr(invariants, group) if f.__name__ == name])
            for other in invariants.OF_DECISIONS:
                if other != name:
                    context.setattr(invariants, other, lambda *arguments: None)
            for other in of_transactions.OF_TRANSACTIONS:
                if other != name:
                    context.setattr(of_transactions, other, lambda *arguments: None)
            with simulated(self._history) as cluster:
                try:
                    cluster.run()
                except invariants.BrokenInvariant as broken:
                    assert broken.name == name, "\n".join([str(broken), *cluster.story])
                    return
        pytest.fail("\n".join(["nothing breaks without the rule", *cluster.story]), pytrace=False)


@pytest.fixture
def scenario(monkeypatch):
    return lambda settings, *events: Scenario(monkeypatch, settings, *events)
