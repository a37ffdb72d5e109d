"""Batches after a gap and beyond the recovery point of a clean stop: verify and repair say once, and alike, what is
wrong; what they advise works."""

from pathlib import Path

import pytest

from kcore.inspect.repair import apply_to_copy
from kcore.inspect.repair_plan import plan_repair
from kcore.inspect.verifier import verify
from kcore.log.open_log import open_log
from tests.unit.inspect.test_lost_marks import SALVAGES, batches_of, make_log, move


@pytest.fixture
def data(tmp_path) -> Path:
    """Two runs of batches that were moved by different numbers, so that nothing says where they were."""
    stored = make_log(tmp_path / "data", [2] * 12)
    for each in stored[6:9]:
        move(each, each.batch.base_offset + 300)
    for each in stored[9:]:
        move(each, each.batch.base_offset + 5000)
    for index in (tmp_path / "data" / "orders-0").glob("*index"):
        index.unlink()
    return tmp_path / "data"


@pytest.mark.parametrize("salvage", SALVAGES)
def test_verify_and_repair_say_once_why_nothing_changes_and_what_to_do(salvage, data):
    said = [p for p in verify(str(data)) if p.damage and "recovery-point-offset-checkpoint" in p.text]
    plans = plan_repair(str(data), salvage=salvage)
    assert not any(plan.actions or plan.losses for plan in plans)
    assert [p for plan in plans for p in plan.beyond_repair] == said
    (problem,) = said
    assert problem.offset == 12
    assert "the log ends at offset 5024, recovery-point-offset-checkpoint says 24: from offset 12 on" in problem.text
    assert "delete this replica" in problem.text and "delete .kafka_cleanshutdown" in problem.text


@pytest.mark.parametrize("salvage", SALVAGES)
def test_without_the_marker_of_a_clean_stop_the_batches_stay_at_their_offsets(salvage, data, tmp_path):
    (data / ".kafka_cleanshutdown").unlink()
    plans = plan_repair(str(data), salvage=salvage)
    apply_to_copy(str(data), plans, str(tmp_path / "repaired"))
    assert not [p for p in verify(str(tmp_path / "repaired")) if p.damage and not p.gaps]
    assert [each.batch.base_offset for each in batches_of(tmp_path / "repaired")] == [
        each.batch.base_offset for each in batches_of(data)
    ]
    with open_log(str(tmp_path / "repaired" / "orders-0")) as log:
        assert sum(1 for _ in log.records()) == 24


def test_a_log_that_ends_at_the_recovery_point_after_a_gap_has_no_such_finding(tmp_path):
    make_log(tmp_path / "data", [2] * 6, [0, 0, 0, 0, 0, 4])
    assert not [problem for problem in verify(str(tmp_path / "data"), compacted=True) if problem.damage]
