"""Each block of docs/tutorial.md is run as a newcomer types it, and prints what the page shows."""

import pytest

from tests.terminal import Terminal

for library in ("confluent_kafka", "starlette"):
    pytest.importorskip(library)


def test_a_newcomer_sees_what_the_tutorial_shows(tmp_path):
    with Terminal(tmp_path, {"/home/ann": tmp_path}) as terminal:
        assert terminal.run("docs/tutorial.md") == 14
