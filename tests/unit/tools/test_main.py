"""The kcore command: exit statuses, and what it loads."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from kcore.tools.main import main
from tests import golden_data

ROOT = Path(__file__).resolve().parents[3]


def kcore(*arguments: str, **options) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "kcore.tools.main", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=200, **options)


@pytest.mark.parametrize("arguments", [["--help"], ["help"], ["dump", "--help"], ["verify", "--help"], ["version"]])
def test_asking_for_help_or_the_version_is_fine(arguments, capsys):
    assert main(arguments) == 0
    assert capsys.readouterr().out


@pytest.mark.parametrize("words", [["dump"], ["topics"], ["topics", "create"], ["topic", "create"]], ids=" ".join)
def test_help_before_a_command_is_that_commands_help(words, capsys):
    assert main([*words, "--help"]) == 0
    expected = capsys.readouterr().out
    assert main(["help", *words]) == 0
    assert capsys.readouterr().out == expected


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["help", "no-such-command"],
        ["no-such-command"],
        ["dump"],
        ["dump", "--no-such-option", "x"],
        ["dump", "/no/such/path"],
        ["verify", "/no/such/path"],
        ["dump", str(ROOT / "kcore")],
        ["verify", str(ROOT / "kcore")],
        ["dump", str(ROOT / "README.md")],
        ["verify", str(ROOT / "README.md")],
        ["dump", "--offsets", "7", "."],
        ["dump", "--offsets", "7:7", "."],
        ["dump", "--offsets", "-1:", "."],
    ],
)
def test_bad_usage_and_paths_that_are_no_log_exit_2_and_say_so_on_stderr(arguments, capsys):
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert err
    assert not out


@pytest.mark.parametrize(
    ("words", "name", "expected"),
    [
        (["verify", "A", "--no-records", "B"], "paths", ["A", "B"]),
        (["dump", "A", "--no-records", "B", "--json", "C"], "paths", ["A", "B", "C"]),
        (["cluster", "l1", "--json", "l2"], "topics", ["l1", "l2"]),
        (["topics", "describe", "l1", "--json", "l2"], "topics", ["l1", "l2"]),
        (["groups", "describe", "g", "--json", "x"], "groups", ["g", "x"]),
        (["groups", "delete", "g", "--timeout", "5", "x"], "groups", ["g", "x"]),
        (["produce", "t", "--json", "in"], "files", ["in"]),
        (["explain", "isr", "t", "--json", "2"], "partition", 2),
        (["spark", "verify", "A", "--quiet", "B"], "paths", ["A", "B"]),
        (["dump", "--", "--A", "-B"], "paths", ["--A", "-B"]),
        (["dump", "A", "--json", "--", "--B", "C"], "paths", ["A", "--B", "C"]),
        (["dump", "--json", "--", "--A"], "paths", ["--A"]),
        (["produce", "--json", "--", "--t", "in"], "files", ["in"]),
        (["mirror", "t", "--follow", "d"], "data_dir", "d"),
        (["consume", "t", "--from", "-1h", "--max", "2"], "max", 2),
        (["groups", "reset", "g", "--all-topics", "--by", "-5"], "by", -5),
        (["serve", "-o", "a=1", "-o", "b=2"], "overrides", ["a=1", "b=2"]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_options_may_stand_between_arguments(words, name, expected, monkeypatch):
    given = []
    monkeypatch.setattr("kcore.tools.commands.Command.invoke", lambda self, ctx: given.append(self.arguments(ctx)) or 0)
    assert main(words) == 0
    assert getattr(given[0], name) == expected


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["dupm"], "did you mean dump?"),
        (["verfy", "x"], "did you mean verify?"),
        (["dump", "--jsn", "x"], "no option --jsn; did you mean --json?"),
        (["dump", "--ofsets=1:2"], "did you mean --offsets?"),
        (["groups", "reset", "g", "--to-earlist"], "no option --to-earlist; did you mean --to-earliest?\n"),
        (["web", "--parnt", "0", "."], "no option --parnt\n"),  # --parent is near, but for kcore's own use
        (["verify", "--no-recrods", "x"], "did you mean --no-records?"),
        (["verify", "--jobs", "0", "x"], "'0': expected a whole number above 0"),
        (["verify", "x", "--jobs"], "kcore verify: Option '--jobs' requires an argument."),
        (
            ["topics", "creat"],
            "kcore topics: no command 'creat'; `kcore topics --help` lists them; did you mean cr",
        ),
        (["consume", "t", "--tail", "1", "--from", "2"], "--from is not allowed with --tail"),
        (["consume", "t", "--from", "1", "--from-beginning"], "--from-beginning is not allowed with --from"),
        (["reassign", "t"], "expected one of --to, --status, --cancel, --unthrottle"),
        (["mirror", "a", "b", "c", "d"], "expected BOOTSTRAP TOPIC DIR, or TOPIC DIR"),
        (["dump", "--start", "5", "--end", "5", "."], "offsets 5:5"),
    ],
)
def test_a_wrong_word_is_answered_with_the_nearest_right_one(arguments, message, capsys):
    assert main(arguments) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        ["cluster", "--bootstrap", "127.0.0.1:1"],
        ["groups", "list", "--bootstrap", "127.0.0.1:1"],
        ["serve", "--data", "/dev/null/data"],
        ["serve", "--data", "d", "--config", "/no/such/file"],
        ["diff", "/no/such/a", "/no/such/b"],
    ],
    ids=" ".join,
)
def test_an_error_of_the_system_is_told_without_its_number(arguments, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    err = capsys.readouterr().err
    assert err.startswith("kcore") and "Errno" not in err


@pytest.mark.parametrize("command", ["dump", "verify", "repair", "diff", "reindex", "consume", "produce"])
def test_the_documentation_names_every_option(command, capsys):
    assert main([command, "--help"]) == 0
    options = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", capsys.readouterr().out)) - {"--help", "--output"}
    pages = (f"commands/{command}.md", "tools.md")
    documented = set(re.findall(r"--[a-z][a-z-]+", "".join((ROOT / "docs" / page).read_text() for page in pages)))
    # What is on unless it is switched off is named by the switch.
    missing = {o for o in options if o not in documented and f"--no-{o[2:]}" not in documented and "--no-" not in o}
    assert not missing


@pytest.mark.parametrize(
    ("words", "statuses"),
    [
        (
            [],
            "0 fine; 1 damage or a difference found, or something in the answer is not in order",
        ),
        (["topics"], "0 fine; 1 a partition has no leader"),
        (
            ["groups"],
            "0 fine; 1 no broker leads some of the groups, the log end of a partition is unknown, or an offset cannot "
            "be moved; 2 usage",
        ),
        (["explain"], "0 fine; 2 usage or environment"),
    ],
)
def test_the_help_says_what_the_exit_statuses_mean(words, statuses, capsys):
    assert main([*words, "--help"]) == 0
    out = capsys.readouterr().out
    assert f"Exit status: {statuses}" in out and out.endswith("; 130 Ctrl-C.\n")


@pytest.mark.parametrize("words", ["verify", "topics create", "groups reset", "spark verify", "version", "topics"])
def test_the_help_of_a_command_begins_with_what_the_list_of_commands_says_of_it(words, capsys):
    *group, name = words.split()
    main([*group, "--help"])
    listed = " ".join(capsys.readouterr().out.partition("Commands:")[2].split())
    main([*group, name, "--help"])
    text = " ".join(capsys.readouterr().out.split("\n\n")[1].split())
    assert f"{name} {text[0].lower()}{text[1:].rstrip('.')}" in listed


@pytest.mark.parametrize("command", ["consume", "mirror"])
def test_the_help_says_how_ctrl_c_ends_what_follows(command, capsys):
    assert main([command, "--help"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "0 all is " in out and "or Ctrl-C with --follow" in out and "130 Ctrl-C without --follow" in out


def test_help_loads_neither_numpy_nor_any_native_module():
    code = (
        "import sys; from kcore.tools.main import main; main(['--help']);"
        "print([m for m in sys.modules if m == 'numpy' or m.startswith(('kcore.record', 'kcore.log', 'kcore.server'))])"
    )
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=200)
    assert result.stdout.splitlines()[-1] == "[]"


def test_dump_does_not_need_numpy():
    code = (
        "import sys; from kcore.tools.main import main;"
        f"main(['dump', {str(golden_data.partition_dir('g-none-0'))!r}]); print('numpy' in sys.modules)"
    )
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=200)
    assert result.stdout.splitlines()[-1] == "False"


def test_a_reader_that_leaves_early_ends_the_command_quietly():
    command = [sys.executable, "-m", "kcore.tools.main", "dump", "--json", str(golden_data.data_dir())]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    process.stdout.readline()
    process.stdout.close()
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait(60) == 141


@pytest.mark.parametrize(
    "arguments, status",
    [(["version"], 0), (["--help"], 0), (["dump", "--json", str(golden_data.partition_dir("g-none-0"))], 0), ([], 2)],
)
@pytest.mark.parametrize("closed", [1, 2])
def test_a_closed_stdout_or_stderr_changes_nothing_else(arguments, status, closed):
    command = [sys.executable, "-m", "kcore.tools.main", *arguments]
    shell = ["sh", "-c", f'exec "$@" {closed}>&-', "sh", *command]
    whole, result = (
        subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=200) for words in (command, shell)
    )
    assert (whole.returncode, result.returncode) == (status, status)
    expected = ("", whole.stderr) if closed == 1 else (whole.stdout, "")
    assert (result.stdout, result.stderr) == expected


def test_ctrl_c_exits_130(monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("kcore.inspect.log_files.files_under", interrupted)
    assert main(["dump", "."]) == 130


def test_the_module_runs_as_a_command():
    assert kcore("version").returncode == 0
    assert kcore("verify", str(golden_data.partition_dir("g-none-0"))).returncode == 0


def test_a_command_that_runs_out_of_memory_reports_that(monkeypatch, capsys):
    def all_taken(path):
        raise MemoryError

    monkeypatch.setattr("kcore.inspect.log_files.files_under", all_taken)
    assert main(["verify", "."]) == 2
    assert capsys.readouterr().err == "kcore: not enough memory\n"


def test_the_last_lines_that_nobody_reads_any_more_end_a_command_as_sigpipe_would():
    reader, writer = os.pipe()
    os.close(reader)
    try:
        command = [sys.executable, "-m", "kcore.tools.main", "version"]
        buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
        done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, timeout=60, env=buffered)
    finally:
        os.close(writer)
    assert (done.returncode, done.stderr) == (141, "")
