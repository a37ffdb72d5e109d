"""How the silence of sessions is counted."""

from kcore.metadata.session_silence import SessionSilence, StoredSession

TIMEOUT_MS = 3000


def rows(*heartbeats):
    return [StoredSession(number, TIMEOUT_MS, heartbeat) for number, heartbeat in enumerate(heartbeats)]


def test_silence_begins_at_the_first_look_and_ends_with_a_heartbeat():
    silence = SessionSilence()
    assert silence.look(rows(7, 1), 10_000) == {0: 0, 1: 0}
    assert silence.look(rows(7, 1), 10_500) == {0: 500, 1: 500}
    assert silence.look(rows(8, 1), 10_750) == {0: 0, 1: 750}
    assert silence.look(rows(8, 1), 10_800) == {0: 50, 1: 800}


def test_a_gap_between_two_looks_counts_as_half_a_timeout_at_most():
    silence = SessionSilence()
    silence.look(rows(7), 0)
    silence.look(rows(7), 500)
    assert silence.look(rows(7), 60_000) == {0: 500 + TIMEOUT_MS / 2}
    assert silence.look(rows(7), 60_250) == {0: 750 + TIMEOUT_MS / 2}


def test_time_in_which_only_this_store_could_write_does_not_count():
    silence = SessionSilence()
    silence.look(rows(7), 0)
    silence.others_were_kept_out(300)
    silence.others_were_kept_out(100)
    assert silence.look(rows(7), 1000) == {0: 600}
    assert silence.look(rows(7), 1200) == {0: 800}  # it counts once
    silence.others_were_kept_out(5000)  # by another clock than that of the looks
    assert silence.look(rows(7), 1300) == {0: 800}


def test_a_session_that_was_not_there_at_the_last_look_or_was_forgotten_begins_at_zero():
    silence = SessionSilence()
    silence.look(rows(7, 1), 0)
    silence.look(rows(7), 500)
    assert silence.look(rows(7, 1), 1000) == {0: 1000, 1: 0}
    silence.forget()
    assert silence.look(rows(7, 1), 1500) == {0: 0, 1: 0}
    assert silence.look(rows(7, 1), 1700) == {0: 200, 1: 200}
