"""Which rules of replication, of the controller and of transactions the simulator guards: each is taken out, and
histories are run until an invariant breaks.

A named scenario (test_*scenarios.py) says which rule it needs.  `python -m tests.sim --rules` measures how long it
takes to notice that one is missing, and writes the table of docs/simulator.md.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from types import FunctionType
from typing import Any
from unittest.mock import patch

from tests.sim import (
    test_controlled_scenarios,
    test_fencing_scenarios,
    test_lost_records_scenarios,
    test_scenarios,
    test_transaction_scenarios,
)
from tests.sim.events import Event, History, Settings
from tests.sim.seeds import Histories, run_seeds
from tests.sim.shrink import Failure

SCENARIOS = (
    test_scenarios,
    test_controlled_scenarios,
    test_fencing_scenarios,
    test_lost_records_scenarios,
    test_transaction_scenarios,
)


@dataclass(frozen=True, slots=True)
class Rule:
    """name: of the test, without `test_`.  invariant: the one that must break.  replaced: (owner, attribute, what
    stands there without the rule)."""

    name: str
    invariant: str
    replaced: tuple[tuple[object, str, object], ...]
    history: History

    @property
    def sentence(self) -> str:
        return self.name.replace("_", " ")

    @property
    def places(self) -> str:
        """What is replaced, for a reader: `Partition.read_records`."""
        return ", ".join(f"`{_name_of(owner)}.{attribute}`" for owner, attribute, _ in self.replaced)

    @contextmanager
    def taken_out(self) -> Iterator[None]:
        with ExitStack() as stack:
            for owner, attribute, without in self.replaced:
                stack.enter_context(patch.object(owner, attribute, without))
            yield


def _name_of(owner: Any) -> str:
    return owner.__name__.rpartition(".")[2]


class _Recorder:
    """Stands for the fixtures `scenario` and `monkeypatch` of a scenario's test, and notes its rules."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._also: list[tuple[object, str, object]] = []
        self._history: History | None = None
        self.rules: list[Rule] = []

    def __call__(self, settings: Settings, *events: Event) -> _Recorder:
        self._history = History(settings, events)
        return self

    def goes_well(self) -> None:
        pass

    def also(self, owner: object, attribute: str, value: object) -> None:
        self._also.append((owner, attribute, value))

    setattr = also  # of `monkeypatch`

    def breaks(self, name: str, owner: object, rule: str, without: object) -> None:
        assert self._history is not None
        self.rules.append(Rule(self._name, name, (*self._also, (owner, rule, without)), self._history))


def rules() -> list[Rule]:
    """In the order of the files; of a scenario with parameters the first one of each place."""
    found: list[Rule] = []
    for module in SCENARIOS:
        for name, test in vars(module).items():
            if isinstance(test, FunctionType) and name.startswith("test_"):
                found += _rules_of(name.removeprefix("test_"), test)
    return found


def _rules_of(name: str, test: Callable[..., None]) -> list[Rule]:
    by_place: dict[str, Rule] = {}
    for arguments in _parameters(test):
        recorder = _Recorder(name)
        for fixture in ("scenario", "monkeypatch"):
            if fixture in test.__code__.co_varnames[: test.__code__.co_argcount]:
                arguments[fixture] = recorder
        test(**arguments)
        for rule in recorder.rules:
            by_place.setdefault(rule.places, rule)
    return list(by_place.values())


def _parameters(test: Callable[..., None]) -> list[dict[str, Any]]:
    for mark in getattr(test, "pytestmark", ()):
        if mark.name == "parametrize":
            return [{mark.args[0]: value} for value in mark.args[1]]
    return [{}]


# -- how long it takes ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Finding:
    """failure: the first history that breaks without the rule, None if there was none; seed: its number.  steps,
    cpu_seconds: of all histories up to there."""

    rule: Rule
    failure: Failure | None
    seed: int
    steps: int
    cpu_seconds: float


def find(rule: Rule, histories: Histories, cpu_seconds: float) -> Finding:
    """Take the rule out, and run histories from 0 on until an invariant breaks, for so many seconds at most."""
    steps = seed = 0
    started = time.process_time()
    with rule.taken_out():
        while True:
            summary = run_seeds(seed, 3600, histories, seeds=1)
            steps += summary.steps
            spent = time.process_time() - started
            if summary.failure is not None or spent > cpu_seconds:
                return Finding(rule, summary.failure, seed, steps, spent)
            seed += 1


#: Of the table in docs/simulator.md.
BEGIN, END = "<!-- rules: begin -->\n", "<!-- rules: end -->\n"
HEADER = "| rule | without it | breaks | steps | CPU s |\n|---|---|---|---|---|\n"


def row(finding: Finding) -> str:
    """A line of the table, from what was found with the rule's own scenario."""
    name = "nothing" if finding.failure is None else finding.failure.name.replace("_", " ")
    rule = finding.rule
    return f"| {rule.sentence} | {rule.places} | {name} | {finding.steps} | {finding.cpu_seconds:.2f} |\n"


def written_into(page: str, table: str) -> str:
    """The page with this table in the place of the one that it has."""
    before, begin, rest = page.partition(BEGIN)
    assert begin and END in rest, "the page has no place for the table"
    return f"{before}{BEGIN}{table}{END}{rest.partition(END)[2]}"
