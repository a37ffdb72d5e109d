"""FailureLog: how often what fails again and again is logged."""

from kcore.common.failure_log import FailureLog

RETRY_BACKOFF_MS = 100


def test_failures_are_logged_once_for_each_kind_and_then_at_growing_intervals():
    log = FailureLog()
    logged = [now // 1000 for now in range(0, 200_000, RETRY_BACKOFF_MS) if log.is_logged("refused", now)]
    assert logged == [0, 1, 3, 7, 15, 31, 63, 123, 183]
    assert log.is_logged("reset", 200_000) and not log.is_logged("reset", 200_100)
    assert sum(log.is_logged(f"a text with {now}", now) for now in range(200_100, 240_000, RETRY_BACKOFF_MS)) < 10
    log.succeeded()
    assert [log.is_logged("refused", now) for now in (300_000, 300_100, 301_000)] == [True, False, True]


def test_a_row_of_failures_also_ends_when_nothing_has_failed_for_a_while():
    log = FailureLog(quiet_ms=10_000)
    assert [log.is_logged("full", now) for now in (0, 500, 1500, 2500)] == [True, False, True, False]
    assert not any(log.is_logged("full", 2500 + now) for now in (100, 200))
    assert [log.is_logged("full", now) for now in (12_701, 12_800, 13_701)] == [True, False, True]
