"""A failure is reported as a short list of events that a person can read and run again."""

from kcore.replica import isr as isr_rules
from tests.sim.__main__ import main
from tests.sim.events import Crash, Cut, Elect, History, Produce, Settings, random_history
from tests.sim.shrink import Failure, run_history, shrunk


def plant_a_bug(monkeypatch):
    """The high watermark is the leader's log end: it waits for no follower."""
    monkeypatch.setattr(isr_rules, "high_watermark_candidate", lambda leader_end, *others: leader_end)


def first_failure() -> Failure:
    for seed in range(30):
        failure = run_history(random_history(seed))
        if failure is not None:
            return failure
    raise AssertionError("30 seeds did not notice the bug")


def test_a_planted_bug_is_shown_by_at_most_a_dozen_events(monkeypatch):
    plant_a_bug(monkeypatch)
    failure = first_failure()
    short = shrunk(failure)
    assert short.name == failure.name
    assert len(short.history.events) <= 12 < len(failure.history.events)
    text = str(short)
    assert "a producer sends 1 record(s) of partition" in text and failure.name.replace("_", " ") in text
    assert "run_history(History(Settings(" in text
    assert len(text.splitlines()) < 130


def test_what_is_printed_to_run_it_again_fails_in_the_same_way(monkeypatch):
    plant_a_bug(monkeypatch)
    short = shrunk(first_failure())
    again = str(short).partition("to run it again:\n")[2]
    names = {"run_history": run_history, "History": History, "Settings": Settings}
    names |= {type(event).__name__: type(event) for event in short.history.events}
    assert eval(again, names).message == short.message


def test_no_event_of_a_shrunk_history_can_be_left_out():
    """Of events that need each other all stay; the others go, wherever they stand."""
    needed = (Crash(20, 1, "is killed"), Elect(40, 0, 2))
    others = [Produce(at_ms, 0) for at_ms in range(0, 60, 3)] + [Cut(at_ms, 0, 1, 5) for at_ms in range(1, 60, 7)]
    history = History(Settings(), tuple(sorted([*needed, *others], key=lambda event: event.at_ms)))
    runs = 0

    def run(candidate: History) -> Failure | None:
        nonlocal runs
        runs += 1
        return Failure("x", "", candidate) if set(needed) <= set(candidate.events) else None

    failure = run(history)
    assert failure is not None
    assert shrunk(failure, run=run).history.events == needed
    assert runs < len(history.events) * 5


def test_another_failure_on_the_way_is_not_taken_for_this_one():
    history = History(Settings(), (Elect(1, 0, 1), Elect(2, 0, 2)))

    def run(candidate: History) -> Failure | None:
        return Failure("x" if len(candidate.events) == 2 else "y", "", candidate)

    assert shrunk(Failure("x", "", history), run=run).history == history


def test_the_command_prints_the_seed_the_short_history_and_how_to_run_it_again(monkeypatch, capsys):
    plant_a_bug(monkeypatch)
    assert main(["--seconds", "60", "--seed", "0"]) == 1
    output = capsys.readouterr().out
    assert "seed 0 fails:" in output and "to run it again:" in output


def test_the_command_prints_seeds_steps_faults_and_rules(capsys):
    assert main(["--seconds", "4", "--seed", "0"]) == 0
    output = capsys.readouterr().out
    for part in ("seeds, ", "steps, ", "Crash", "message lost", "ISR: join proposed", "truncation by EPOCH-08"):
        assert part in output
