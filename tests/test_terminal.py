"""The shell in which the commands of the pages are typed notices a page that shows something else."""

import signal

import pytest

from tests.terminal import Terminal, commands_of, is_like


@pytest.fixture
def terminal(tmp_path):
    with Terminal(tmp_path, {"/var/lib/kafka": tmp_path / "data"}) as shell:
        yield shell


def test_a_block_has_commands_of_several_lines_and_what_each_prints():
    assert commands_of("$ a\n$ b \\\n  c\nx\n\ny\n$ d\n") == [("a", ""), ("b \\\n  c", "x\n\ny\n"), ("d", "")]


@pytest.mark.parametrize(
    ("shown", "printed"),
    [
        ("3 records in 0.046 s (8.1 kB/s)\n", "3 records in 9.2e-05 s (455 bytes/s)\n"),
        ("3 bytes in 0.216 s (1.6 kB/s): no damage\n", "3 bytes in 0.09 s: no damage\n"),
        ("2026-11-24T03:01:12Z crc 0x00\n", "2026-11-29T10:52:16.045Z crc 0xc45b8f08\n"),
        ("first\n...\nlast\n", "first\none\ntwo\nlast\n"),
    ],
)
def test_what_differs_in_each_run_may_differ(shown, printed):
    assert is_like(shown, printed)


@pytest.mark.parametrize("printed", ["3 records in 1 s\n", "2 records in 1 s\nand more\n", ""])
def test_another_output_is_noticed(printed):
    assert not is_like("2 records in 1 s\n", printed)


def test_the_page_that_is_typed_fails_where_it_shows_something_else(terminal, tmp_path):
    page = tmp_path / "page.md"
    page.write_text("```python\n# hello.py\nprint('hello')\n```\n\n```console\n$ python hello.py\nhello\n```\n")
    assert terminal.run(page) == 2
    page.write_text("```console\n$ python hello.py\ngood bye\n```\n")
    with pytest.raises(AssertionError, match="shown:\ngood bye\n\nprinted:\nhello\n"):
        terminal.run(page)


def test_a_command_has_the_status_of_the_one_before_and_the_names_of_the_page(terminal, tmp_path):
    assert terminal.type("false") == ""
    assert terminal.type("echo $?") == "1\n"
    assert terminal.type("mkdir /var/lib/kafka && cat; echo /var/lib/kafka") == "/var/lib/kafka\n"
    assert (tmp_path / "data").is_dir()


def test_what_runs_in_the_background_is_waited_for_and_ends_with_the_shell(tmp_path):
    with Terminal(tmp_path) as shell:
        shown = f"kcore: serving {tmp_path}/shop on 127.0.0.1:9092\n"
        assert shell.type("kcore serve --data shop 2>broker.txt &", shown) == shown
        assert shell.type("kcore topics list") == ""
    assert "broker 1 has stopped" in (tmp_path / "broker.txt").read_text()


def test_a_command_that_does_not_end_does_not_outlive_the_failure(tmp_path, monkeypatch):
    monkeypatch.setattr("tests.terminal._DEADLINE_S", 1)
    with pytest.raises(AssertionError, match="sleep 1000\nhas printed only\nbegun"), Terminal(tmp_path) as shell:
        shell.type("echo begun; sleep 1000")
    assert shell.returncode == -signal.SIGTERM
