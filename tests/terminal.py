"""The commands of a page, typed into one shell: what they print must be what the page shows.

In a page a block ```console has commands after `$ `, and what each of them prints. A line `...` stands for any lines. A
block ```python is a file, which the comment in its first line names.
"""

import contextlib
import doctest
import os
import re
import selectors
import shlex
import signal
import subprocess
import sys
import time

from sybil import Example, Sybil
from sybil.parsers.markdown import CodeBlockParser

from tests.pages import ROOT
from tests.zookeeper_server import free_port

#: What differs in each run: durations, rates, dates, CRCs, ids, processes, and which broker is the controller or led.
_VARYING = (
    # Of less than a tenth of a second there is no rate.
    (re.compile(r"\b\d+(\.\d+)?(e-\d+)? ?s\b( \(\d+(\.\d+)? (bytes|[kMG]?B)/s\))?"), "N s"),
    (re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d[.\d]*Z?"), "DATE"),
    (re.compile(r"crc 0x[0-9a-f]+"), "crc N"),
    (re.compile(r"expected \d+, found \d+"), "expected N, found N"),
    (re.compile(r"cluster [\w-]{22}(?!\w)"), "cluster ID"),
    (re.compile(r"process \d+"), "process N"),
    (re.compile(r"broker \d+ (is the controller|stopped|led)"), r"broker N \1"),
)
_DEADLINE_S = 60
_END = "-- the command has ended --"


class Terminal:
    """A shell in an empty directory, with `kcore`, `python` and `pytest` of this interpreter.

    names: text of the page -> what it stands for here, as a directory of the system.  Where the page has the ports 9092
    to 9094 and 8080, four free ones are used.  Use it with `with`: what the shell has started ends with it.
    """

    def __init__(self, directory, names=()):
        self._directory = directory
        self._names = {there: str(here) for there, here in dict(names).items()}
        first = free_port(4)
        self._ports = {str(port): str(first + n) for n, port in enumerate((9092, 9093, 9094, 8080))}
        programs = directory / ".programs"
        programs.mkdir()
        (programs / "python").write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} "$@"\n')
        for name in ("kcore", "pytest"):
            # The system has the name of this file as that of the process.
            run = f"import runpy\nrunpy.run_module({name!r}, run_name='__main__', alter_sys=True)\n"
            (programs / name).write_text(f"#!{sys.executable}\n{run}")
        for program in programs.iterdir():
            program.chmod(0o755)
        config = programs / "config.toml"
        config.write_text(f'bootstrap = "127.0.0.1:{first}"\n[serve]\nport = {first}\n')
        self._shell = subprocess.Popen(
            ["bash", "--norc"],
            cwd=directory,
            env={
                **os.environ,
                "PATH": f"{programs}:{os.environ['PATH']}",
                "KCORE_CONFIG": str(config),
                "COLUMNS": "80",
            },
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self._printed = ""
        #: Of the shell, once it has ended.
        self.returncode = None

    def __enter__(self):
        return self

    def __exit__(self, kind, error, traceback):
        if error is not None:  # the shell may wait for a command that does not end
            os.killpg(self._shell.pid, signal.SIGTERM)
        # What runs in the background gets a SIGTERM, and is waited for.
        with contextlib.suppress(BrokenPipeError):
            self._shell.stdin.write(b"kill $(jobs -p) 2>/dev/null; wait; exit\n")
            self._shell.stdin.close()
        self._shell.stdout.close()
        self.returncode = self._shell.wait(_DEADLINE_S)

    def run(self, page):
        """All blocks of a page below the project's root; their number.

        Raises AssertionError where something else is printed than the page shows.
        """
        parsers = [CodeBlockParser("console", self._type_all), CodeBlockParser("python", self._save)]
        examples = list(Sybil(parsers=parsers).parse(ROOT / page).examples())
        for example in examples:
            example.evaluate()
        return len(examples)

    def _save(self, example: Example):
        text = str(example.parsed)
        name = re.match(r"# (\w+\.py)\n", text)
        assert name, f"the first line of a block names its file: {text[:80]}"
        (self._directory / name[1]).write_text(self._local(text))

    def _type_all(self, example: Example):
        for command, expected in commands_of(str(example.parsed)):
            printed = self.type(command, expected)
            assert is_like(expected, printed), f"{command}\nshown:\n{expected}\nprinted:\n{printed}"

    def type(self, command, expected=""):
        """What the command prints, in the page's names; of one in the background: until it is as expected."""
        command = self._local(command)
        # It must not read what is typed next.
        self._shell.stdin.write(f"{{ {command}\n}} </dev/null\nstatus=$?; echo '{_END}'; (exit $status)\n".encode())
        self._shell.stdin.flush()
        self._wait(lambda: _END in self._printed, command)
        before, _, after = self._printed.partition(f"{_END}\n")
        self._printed = before + after
        if command.endswith("&"):
            self._wait(lambda: is_like(expected, self._shown()), command)
        printed, self._printed = self._shown(), ""
        return printed

    def _local(self, text):
        """With the names and ports of this run."""
        return _with(self._names, _with_ports(self._ports, text))

    def _shown(self):
        back = {here: there for there, here in self._names.items()}
        return _with_ports({here: there for there, here in self._ports.items()}, _with(back, self._printed))

    def _wait(self, happened, command):
        deadline = time.monotonic() + _DEADLINE_S
        with selectors.DefaultSelector() as selector:
            selector.register(self._shell.stdout, selectors.EVENT_READ)
            while not happened():
                assert selector.select(deadline - time.monotonic()), f"{command}\nhas printed only\n{self._printed}"
                self._printed += os.read(self._shell.stdout.fileno(), 1 << 16).decode()


def _with(names, text):
    for one, other in names.items():
        text = text.replace(one, other)
    return text


def _with_ports(ports, text):
    return re.sub(r"\b(\d+)\b", lambda found: ports.get(found[0], found[0]), text)


def commands_of(text):
    """[(a command, perhaps of several lines, and what it prints)] of a block."""
    found = re.findall(r"^\$ ((?:.*\\\n)*.*)\n((?:(?!\$ ).*\n?)*)", f"{text.rstrip()}\n", re.M)
    assert found, f"no command: {text}"
    return [(command, printed) for command, printed in found]


def is_like(expected, printed):
    """Whether that was printed, but for what varies."""
    for pattern, name in _VARYING:
        expected, printed = pattern.sub(name, expected), pattern.sub(name, printed)
    return doctest.OutputChecker().check_output(expected, printed, doctest.ELLIPSIS)
