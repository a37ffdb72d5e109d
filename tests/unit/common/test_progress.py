"""How far a command is: what a terminal, a file and a dumb terminal get to see."""

import io
import re
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from kcore.common import progress as progress_module
from kcore.common.progress import Progress, phase
from kcore.tools.main import main
from tests import golden_data
from tests.unit.tools.command import LOG, flip

ROOT = Path(__file__).resolve().parents[3]
_ESCAPE = re.compile(r"\x1b\[[?0-9;]*[a-zA-Z]")
_COLOUR = re.compile(r"\x1b\[[0-9;]*3[0-9][0-9;]*m")


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self):
        return True


@pytest.fixture
def terminal(monkeypatch):
    """A terminal of 80 columns with colours, whatever the tests run in."""
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "COLORTERM"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(Progress, "_BAR_SECONDS", 0.0)
    return Terminal()


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    """Its time never changes."""
    monkeypatch.setattr(progress_module, "time", SimpleNamespace(monotonic=lambda: 1000.0))


def half_done(stream, *, seconds: float = 10.0, **options) -> Progress:
    progress = Progress("verify", 3_000_000_000, stream=stream, **options)
    progress._started = progress._shown = progress_module.time.monotonic() - seconds
    progress.advance(1_500_000_000, "/srv/data/orders-0/00000000000000012345.log")
    return progress


def lines_of(text: str) -> list[str]:
    return [line for line in _ESCAPE.sub("", text).replace("\r", "\n").split("\n") if line.strip()]


def test_a_terminal_gets_a_bar_with_the_file_the_findings_and_the_time_left(terminal):
    progress = half_done(terminal)
    progress.findings = 2
    progress.show()
    above, below = lines_of(terminal.getvalue())
    assert re.fullmatch(r"verify +[━╸╺ ]+ +50% +1\.5 GB of 3\.0 GB +150\.0 MB/s +0:00:10 left *", above)
    assert below.strip() == f"2 findings  orders-0/{12345:020}.log"
    assert _COLOUR.search(terminal.getvalue())


@pytest.mark.parametrize("columns", [20, 40, 80, 200])
def test_it_fits_the_terminal(terminal, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    progress = half_done(terminal)
    progress.findings = 3
    progress.advance(1, f"/srv/data/{'long-name' * 27}-0/{7:020}.log")
    progress.show()
    shown = lines_of(terminal.getvalue())
    assert len(shown) == 2 and max(map(len, shown)) == columns


def test_no_color_is_respected(terminal, monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    progress = half_done(terminal)
    progress.findings = 1
    progress.show()
    assert "1 finding " in terminal.getvalue() and not _COLOUR.search(terminal.getvalue())


def test_a_bar_taken_off_leaves_no_line_and_erases_none_when_it_is_drawn_again(terminal):
    progress = half_done(terminal)
    progress.show()
    progress.clear()
    assert terminal.getvalue().endswith("\x1b[?25h\r\x1b[1A\x1b[2K\x1b[1A\x1b[2K")  # the cursor is back; two lines go
    drawn = terminal.tell()
    progress.show()
    progress.clear()
    again = terminal.getvalue()[drawn:]
    assert again.index("verify") < again.index("\x1b[1A")  # nothing above is erased before it is drawn


def test_a_command_left_by_an_error_leaves_no_bar(terminal, monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "stderr", terminal)

    def fails(*_, **options):
        half_done(terminal).show()
        raise OSError("the disk is gone")

    monkeypatch.setattr("kcore.tools.verify.verify", fails)
    assert main(["verify", str(golden_data.partition_dir("g-none-0"))]) == 2
    assert terminal.getvalue().endswith("\x1b[2Kkcore: the disk is gone\n")


def test_on_a_dumb_terminal_there_are_plain_lines(terminal, monkeypatch):
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setattr(Progress, "_LINE_SECONDS", 0.0)
    progress = half_done(terminal)
    progress.findings = 2
    for _ in range(2):
        progress.show()
    progress.clear()
    assert terminal.getvalue() == (
        f"verify: 1.5 GB of 3.0 GB, 150.0 MB/s, 0:00:10 left, 2 findings, orders-0/{12345:020}.log\n"
    )


def test_what_is_no_terminal_gets_a_line_and_no_escapes(monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setattr(Progress, "_LINE_SECONDS", 0.0)
    stream = io.StringIO()
    half_done(stream).show()
    assert stream.getvalue() == (f"verify: 1.5 GB of 3.0 GB, 150.0 MB/s, 0:00:10 left, orders-0/{12345:020}.log\n")
    half_done(stream, quiet=True).show()
    assert stream.getvalue().count("\n") == 1


def test_findings_are_counted_while_files_are_read(tmp_path, monkeypatch, capsys):
    import shutil

    data = Path(shutil.copytree(golden_data.data_dir(), tmp_path / "data"))
    flip(data / "g-none-0" / LOG, 3600)
    monkeypatch.setattr(Progress, "_LINE_SECONDS", 0.0)
    assert main(["verify", "--jobs", "1", str(data)]) == 1
    assert re.search(r"left, 1 finding, \S+/\S+$", capsys.readouterr().err, re.M)


def test_a_phase_is_named_on_a_terminal_and_elsewhere_when_it_takes_long(terminal, monkeypatch):
    with phase("starting Java", stream=terminal):
        time.sleep(0.05)
    assert "starting Java" in terminal.getvalue()
    stream = io.StringIO()
    with phase("starting Java", stream=stream):
        pass
    assert stream.getvalue() == ""
    monkeypatch.setattr(progress_module, "_PHASE_SECONDS", 0.0)
    with phase("starting Java", stream=stream):
        time.sleep(0.2)
    assert stream.getvalue() == "starting Java\n"
    with phase("starting Java", stream=stream, quiet=True):
        time.sleep(0.05)
    assert stream.getvalue() == "starting Java\n"


def test_a_command_imports_no_rich_before_it_draws():
    code = (
        "import sys; from kcore.tools.main import main;"
        f"main(['verify', {str(golden_data.partition_dir('g-none-0'))!r}]); print('rich' in sys.modules)"
    )
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=200)
    assert result.stdout.splitlines()[-1] == "False"
