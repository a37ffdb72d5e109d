"""kcore completion: the shells themselves complete with the script."""

import os
import pty
import select
import shutil
import subprocess
import sys
import time

import pytest

from kcore.tools.main import COMMANDS, main
from tests.unit.tools.command import LOG

#: What is typed after "kcore ", and what the shell then runs.
TYPED = [
    ("veri\t--jo\t2", "verify --jobs 2"),
    ("repair --salvage kee\tx", "repair --salvage keep-after x"),
    ("spark recom\t--cod\tzstd", "spark recompress --codec zstd"),
    (f"dump orders-0/{LOG[:5]}\t", f"dump orders-0/{LOG}"),
    ("serve --data ord\t", "serve --data orders-0"),
]

#: What the shell reads first: `kcore` prints its arguments, and the prompt shows that the shell is ready.
_COMMON = 'eval "$(cat {script})"; kcore() {{ echo "<$*>"; }}; PS1=\'ready> \'\n'
SETUP = {
    "bash": _COMMON,
    # insert-tab: what is typed before the prompt has come is completed too.
    "zsh": f"autoload -Uz compinit; compinit -u -D; zstyle ':completion:*' insert-tab false; {_COMMON}",
}


def script(shell, capsys) -> str:
    assert main(["completion", shell]) == 0
    out, err = capsys.readouterr()
    assert not err
    return out


class TypedAt:
    """An interactive shell on a pseudo-terminal."""

    def __init__(self, command, directory, environment):
        self.pid, self.terminal = pty.fork()
        if self.pid == 0:
            os.chdir(directory)
            os.execvpe(command[0], command, environment)
        self.shown = ""

    def wait_for(self, text: str) -> str:
        """What was shown until the text came; AssertionError after a minute."""
        deadline = time.monotonic() + 60
        poll = select.poll()
        poll.register(self.terminal, select.POLLIN)
        while text not in self.shown:
            ready = poll.poll(max(0, 1000 * (deadline - time.monotonic())))
            assert ready, f"no {text!r} in {self.shown!r}"
            self.shown += os.read(self.terminal, 65536).decode(errors="replace")
        before, _, self.shown = self.shown.partition(text)
        return before

    def type(self, text: str) -> None:
        os.write(self.terminal, text.encode())

    def close(self) -> None:
        os.close(self.terminal)  # it gets SIGHUP
        os.waitpid(self.pid, 0)


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_a_shell_completes_commands_options_choices_and_paths(shell, tmp_path, capsys):
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    home = tmp_path / "home"
    home.mkdir()
    (home / "script").write_text(script(shell, capsys))
    rc = home / (".zshrc" if shell == "zsh" else "rc")
    rc.write_text(SETUP[shell].format(script=home / "script"))
    data = tmp_path / "data"
    (data / "orders-0").mkdir(parents=True)
    (data / "orders-0" / LOG).touch()
    environment = {"PATH": os.environ["PATH"], "HOME": str(home), "ZDOTDIR": str(home), "TERM": "dumb"}
    command = ["bash", "--noprofile", "--rcfile", str(rc), "-i"] if shell == "bash" else ["zsh", "-i", "-d"]
    person = TypedAt(command, data, environment)
    try:
        for typed, run in TYPED:
            person.wait_for("ready> ")
            person.type(f"kcore {typed}\n")
            person.wait_for("<")
            assert person.wait_for(">").strip().removesuffix("/") == run  # zsh takes the slash back
    finally:
        person.close()


def test_fish_completes_commands_options_choices_and_paths(tmp_path, capsys):
    if shutil.which("fish") is None:
        pytest.skip("fish is not installed")
    (tmp_path / "script").write_text(script("fish", capsys))
    (tmp_path / "orders-0").mkdir()
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}
    for typed, offered in (
        ("veri", "verify"),
        ("verify --jo", "--jobs"),
        ("repair --salvage kee", "keep-after"),
        ("spark recom", "recompress"),
        ("verify ord", "orders-0/"),
    ):
        done = subprocess.run(
            ["fish", "--no-config", "-c", f"source script; complete -C 'kcore {typed}'"],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert offered in [line.split("\t")[0] for line in done.stdout.splitlines()], (typed, done)


def test_it_knows_every_command(capsys):
    for shell in ("bash", "zsh", "fish"):
        text = script(shell, capsys)
        assert not [name for name in COMMANDS if name not in text]


def test_without_shtab_the_error_names_it(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "shtab", None)
    assert main(["completion", "bash"]) == 2
    assert capsys.readouterr() == ("", "kcore: kcore completion needs shtab: pip install 'kcore[tools]'\n")
