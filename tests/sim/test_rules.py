"""The table of rules in docs/simulator.md, and the histories near the named scenarios."""

import importlib
import inspect
import os
from pathlib import Path
from types import FunctionType
from typing import Any

import pytest

from tests.sim import __main__ as command
from tests.sim.aimed import aimed_history, mixed_history, scenarios, varied
from tests.sim.events import Event
from tests.sim.rules import BEGIN, END, SCENARIOS, Rule, find, rules, written_into
from tests.sim.seeds import history_of
from tests.sim.shrink import run_history, shrunk

#: Variations of each scenario that are run.
VARIATIONS = 3 if "KCORE_LONG" in os.environ else 0


def named(text: str) -> Rule:
    (rule,) = (rule for rule in rules() if text in rule.name)
    return rule


def test_the_list_of_scenarios_has_each_test_of_a_scenario_once():
    """What is not in it is not in the table, and no aimed history comes near it."""
    written: list[str] = []
    for path in sorted(Path(__file__).parent.glob("test_*.py")):
        module = importlib.import_module(f"tests.sim.{path.stem}")
        for name, test in vars(module).items():
            if name.startswith("test_") and "scenario" in _arguments(test):
                assert test.__module__ == module.__name__, f"{name} is imported into {module.__name__}: it runs twice"
                written.append(f"{path.stem}::{name.removeprefix('test_')}")
    listed = [
        f"{module.__name__.rpartition('.')[2]}::{name.removeprefix('test_')}"
        for module in SCENARIOS
        for name, test in vars(module).items()
        if name.startswith("test_") and "scenario" in _arguments(test)
    ]
    assert sorted(listed) == sorted(written)
    assert {rule.name for rule in rules()} == {name.partition("::")[2] for name in written}
    places = [(rule.name, rule.places) for rule in rules()]
    assert len(set(places)) == len(places)


def _arguments(test: Any) -> dict[str, Any]:
    return dict(inspect.signature(test).parameters) if isinstance(test, FunctionType) else {}


def test_the_page_has_each_rule_and_no_other():
    """`python -m tests.sim --rules` writes it."""
    table = command.PAGE.read_text().partition(BEGIN)[2].partition(END)[0]
    rows = [line.split(" | ")[:2] for line in table.splitlines()[2:]]
    assert [[sentence.removeprefix("| "), places] for sentence, places in rows] == [
        [rule.sentence, rule.places] for rule in rules()
    ]
    assert "| nothing |" not in table


def test_a_rule_that_is_taken_out_is_noticed_and_is_in_force_again_after_that():
    rule = named("KIP_380_a_request_for_an_earlier_registration")
    ((owner, attribute, without),) = rule.replaced
    finding = find(rule, lambda seed: rule.history, 60)
    assert finding.failure is not None and finding.failure.name == rule.invariant
    assert finding.seed == 0 and finding.steps > 0
    assert getattr(owner, attribute) is not without
    assert run_history(rule.history) is None


def test_the_search_gives_up_when_its_time_is_over():
    """What is replaced by itself is no rule."""
    rule = named("KIP_380_a_request_for_an_earlier_registration")
    ((owner, attribute, _),) = rule.replaced
    harmless = Rule(rule.name, rule.invariant, ((owner, attribute, getattr(owner, attribute)),), rule.history)
    finding = find(harmless, lambda seed: rule.history, 0)
    assert finding.failure is None


def test_the_command_prints_a_row_for_each_rule(capsys):
    before = command.PAGE.read_text()
    assert command.main(["--rules", "--only", "KIP_903_a_follower_that_has_registered_again"]) == 0
    (row,) = capsys.readouterr().out.splitlines()
    assert "seed   0  | KIP 903 a follower that has registered again since its fetch does not join |" in row
    assert command.PAGE.read_text() == before, "some of the rules are not the table"


def test_the_table_is_written_in_place_of_the_one_before():
    page = f"before\n{BEGIN}old\n{END}after\n"
    assert written_into(page, "new\n") == f"before\n{BEGIN}new\n{END}after\n"


def test_aimed_histories_are_first_each_scenario_and_then_others_near_it():
    count = len(scenarios())
    assert [aimed_history(seed).events for seed in range(count)] == [history.events for history in scenarios()]
    for seed in range(count, 3 * count):
        history = aimed_history(seed)
        assert history == aimed_history(seed)
        near = scenarios()[seed % count]
        assert (history.settings.brokers, history.settings.controller) == (
            near.settings.brokers,
            near.settings.controller,
        )
        times = [event.at_ms for event in history.events]
        assert times == sorted(times) and min(times) > 0
        assert len(near.events) <= len(history.events) <= len(near.events) + 3
    varied_events = {varied(scenarios()[0], number).events for number in range(10)}
    assert len(varied_events) > 5


def test_mixed_histories_are_of_all_kinds():
    kinds = [mixed_history(seed) for seed in range(14)]
    assert kinds[0].events == history_of(0).events
    assert kinds[8].events == history_of(1, with_controller=True).events
    assert [kinds[at].events for at in (2, 3, 9, 10)] == [scenarios()[at].events for at in range(4)]
    assert kinds[6].settings.transactions and kinds[13].settings.transactions
    lacking = [_kinds(history_of(number).events) - _kinds(mixed_history(7 * number + 4).events) for number in range(4)]
    assert all(lacking), "a swarm's seed leaves out kinds of events"


def _kinds(events: tuple[Event, ...]) -> set[type[Event]]:
    return {type(event) for event in events}


@pytest.mark.parametrize("at", range(len(scenarios()) if VARIATIONS else 0))
def test_no_variation_of_a_scenario_breaks_an_invariant(at):
    for number in range(1, 1 + VARIATIONS):
        failure = run_history(varied(scenarios()[at], number))
        if failure is not None:
            pytest.fail(str(shrunk(failure)), pytrace=False)
