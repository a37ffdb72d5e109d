"""The user's configuration file: values of options that are not on the command line."""

import json
import os
import subprocess
import sys

import pytest

import kcore
from kcore.tools.commands import whole_tree
from kcore.tools.config_file import SHARED
from kcore.tools.main import kcore as kcore_command
from kcore.tools.main import main


@pytest.fixture
def config(tmp_path, monkeypatch):
    """Writes the file; returns its path."""
    monkeypatch.delenv("KCORE_BOOTSTRAP", raising=False)
    path = tmp_path / "my.toml"
    monkeypatch.setenv("KCORE_CONFIG", str(path))

    def write(text: str) -> str:
        path.write_text(text)
        return str(path)

    return write


@pytest.fixture
def given(monkeypatch):
    """Runs a command line, and returns what its command would get."""
    found = []
    monkeypatch.setattr("kcore.tools.commands.Command.invoke", lambda self, ctx: found.append(self.arguments(ctx)) or 0)

    def run(*words: str):
        assert main(words) == 0
        return found.pop()

    return run


def test_a_key_outside_the_tables_is_for_every_command_that_has_the_option(config, given):
    config('bootstrap = "a:1"\ntimeout = 7')
    args = given("topics", "list")
    assert (args.bootstrap, args.timeout) == ("a:1", 7)
    assert given("verify", "x").paths == ["x"]
    assert given("mirror", "t", "d").bootstrap == "a:1"
    assert given("mirror", "b:2", "t", "d").address == "b:2"


def test_a_table_is_for_one_command_and_goes_before_the_keys_outside(config, given):
    config('timeout = 7\n[consume]\nformat = "json"\nheader = ["a=1", "b"]\ntimeout = 9\n[topics.create]\nreplicas = 3')
    args = given("consume", "t")
    assert (args.format, args.header, args.timeout) == ("json", ["a=1", "b"], 9)
    args = given("topics", "create", "t")
    assert (args.replicas, args.timeout) == (3, 7)
    assert given("produce", "t").format == "lines"


def test_an_option_that_may_be_repeated_has_a_list_of_addresses(config, given):
    config('[acls.list]\nhost = ["10.0.0.1", "10.0.0.2"]')
    assert given("acls", "list").host == ["10.0.0.1", "10.0.0.2"]


def test_every_spelling_of_an_option_is_a_key(config, given):
    config("[topics.create]\nreplication-factor = 3\n[verify]\nno-records = true")
    assert given("topics", "create", "t").replicas == 3
    assert given("verify", "x").records is False
    config("[dump]\njson = true\nprint-data-log = false")
    args = given("dump", "x")
    assert (args.format, args.values) == ("json", False)


def test_the_command_line_goes_before_the_environment_before_the_file_before_the_default(config, given, monkeypatch):
    config("")
    assert given("cluster").bootstrap == "127.0.0.1:9092"
    config('bootstrap = "file:1"')
    assert given("cluster").bootstrap == "file:1"
    monkeypatch.setenv("KCORE_BOOTSTRAP", "environment:1")
    assert given("cluster").bootstrap == "environment:1"
    assert given("cluster", "--bootstrap", "line:1").bootstrap == "line:1"


def test_an_option_of_the_command_line_replaces_one_of_the_file_that_is_not_allowed_with_it(config, given):
    config("[consume]\njson = true")
    assert given("consume", "t").json
    args = given("consume", "t", "--format", "%s")
    assert (args.json, args.format) == (False, "%s")


def test_an_option_that_is_needed_may_be_in_the_file(config, given):
    config("[reassign]\nstatus = true")
    assert given("reassign").status
    assert not given("reassign", "t", "--to", "1").status


@pytest.mark.parametrize(
    ("text", "words", "message"),
    [
        ('bootstap = "a:1"', ["cluster"], "bootstap: there is no such option of all commands; did you mean bootstrap?"),
        ('format = "json"', ["consume", "t"], "commands; options of one command are in its table, as [consume]"),
        ("[topics]\njson = true", ["topics", "list"], "topics.json: there is no such option of all commands; options"),
        ("[topics]\njson = true", ["topics", "list"], "options of one command are in its table, as [topics.list]"),
        ("[topics]\nx = true", ["topics", "list"], "options of one command are in its table, as [topics.list]"),
        ("[topics]\nlist = 5", ["topics", "list"], "topics.list: expected a table of options, as [topics.list]"),
        ("[consum]", ["cluster"], "consum: there is no such command; did you mean consume?"),
        ("[topics.creat]", ["topics", "list"], "topics.creat: there is no such command; did you mean create?"),
        ("[consume]\nfromat = 1", ["consume", "t"], "consume.fromat: there is no such option; did you mean format?"),
        ("[verify]\nbootstrap = 1", ["verify", "x"], "verify.bootstrap: there is no such option"),
        ("consume = 1", ["cluster"], "consume: expected a table of options, as [consume]"),
        ("timeout = -1", ["cluster"], "timeout: '-1': expected a whole number above 0"),
        ("timeout = true", ["cluster"], "timeout: expected a text or a number"),
        ("timeout = [1]", ["cluster"], "timeout: expected a text or a number"),
        ("bootstrap = 5", ["cluster"], 'bootstrap: expected a text, as "HOST:PORT[,...]", not 5'),
        ("[topics]\nbootstrap = 9.5", ["topics", "list"], 'topics.bootstrap: expected a text, as "HOST:PORT[,...]"'),
        ("[web]\nhttp = 8080", ["web"], 'web.http: expected a text, as "HOST:PORT", not 8080'),
        ("[acls.list]\nhost = [5]", ["acls", "list"], 'acls.list.host: expected a text, as "ADDRESS", not [5]'),
        ("[serve]\nhost = 5", ["serve"], 'serve.host: expected a text, as "ADDRESS", not 5'),
        ("quiet = 1", ["verify", "x"], "quiet: expected true or false, not 1"),
        ("[consume]\nheader = [[1]]", ["consume", "t"], "consume.header: expected a list of texts or numbers"),
        (
            '[produce]\nformat = "jsn"',
            ["produce", "t"],
            "produce.format: 'jsn' is not one of 'lines', 'json'; did you mean json?",
        ),
        ("[consume]\njson = true\nformat = 1", ["consume", "t"], "consume.json is not allowed with "),
        ("= 1", ["cluster"], "it is no TOML: "),
    ],
)
def test_what_is_wrong_is_an_error_with_file_and_key_and_the_nearest_right_one(text, words, message, config, capsys):
    path = config(text)
    assert main(words) == 2
    out, err = capsys.readouterr()
    assert err.startswith(f"kcore: {path}: ") and message in err and not out
    assert len(err.splitlines()) == 1


def test_a_wrong_file_does_not_keep_anyone_from_the_help(config, capsys):
    config("what = 1")
    for words in (["--help"], ["consume", "--help"], ["topics", "--help"]):
        assert main(words) == 0
    assert "config.toml" in capsys.readouterr().out


def test_a_file_that_the_environment_names_must_be_there(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("KCORE_CONFIG", str(tmp_path / "missing.toml"))
    assert main(["version"]) == 2
    assert capsys.readouterr().err == f"kcore: {tmp_path / 'missing.toml'}: No such file or directory\n"


@pytest.mark.parametrize("kind", ["directory", "fifo", "device"])
def test_a_file_that_the_environment_names_must_be_one(kind, tmp_path):
    path = tmp_path / "config.toml"
    if kind == "directory":
        path.mkdir()
    elif kind == "fifo":
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/zero")
    # A process of its own: a read of the FIFO would wait for ever, one of the device would never end.
    done = subprocess.run(
        [sys.executable, "-m", "kcore", "version"],
        env=os.environ | {"KCORE_CONFIG": str(path)},
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    found = "a directory, and KCORE_CONFIG names it" if kind == "directory" else "no regular file"
    reason = f"expected a file with settings, this is {found}"
    assert (done.returncode, done.stdout, done.stderr) == (2, "", f"kcore: {path}: {reason}\n")


@pytest.mark.parametrize("variable", ["XDG_CONFIG_HOME", "HOME"])
def test_the_file_is_in_the_users_directory_of_configurations(variable, tmp_path, monkeypatch, given):
    for name in ("KCORE_CONFIG", "XDG_CONFIG_HOME", "KCORE_BOOTSTRAP"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "nobody"))
    monkeypatch.setenv(variable, str(tmp_path))
    assert given("cluster").bootstrap == "127.0.0.1:9092"
    directory = tmp_path / ("kcore" if variable == "XDG_CONFIG_HOME" else ".config/kcore")
    directory.mkdir(parents=True)
    (directory / "config.toml").write_text('bootstrap = "file:1"')
    assert given("cluster").bootstrap == "file:1"


def test_an_address_of_the_file_that_does_not_answer_or_is_none_is_named_with_it(config, capsys):
    path = config('bootstrap = "127.0.0.1:1"')
    assert main(["topics", "list"]) == 2
    assert capsys.readouterr().err.endswith(f"127.0.0.1:1: Connection refused (the address comes from {path})\n")
    config('bootstrap = "localhost:ninety"')
    assert main(["topics", "list"]) == 2
    assert capsys.readouterr().err == f"kcore: {path}: 'localhost:ninety' is no HOST:PORT\n"


def test_the_cluster_of_the_file_answers(config, capsys):
    with kcore.Broker() as broker:
        broker.create_topic("orders")
        config(f'bootstrap = "{broker.bootstrap_servers}"\n[topics.list]\njson = true')
        assert main(["topics", "list"]) == 0
        assert json.loads(capsys.readouterr().out)["topic"] == "orders"


def test_an_option_that_is_shared_is_one_of_several_commands_and_has_one_meaning():
    kinds = {name: {} for name in SHARED}
    for words, command in whole_tree(kcore_command):
        for param in command.params:
            for name in SHARED:
                if f"--{name}" in param.opts:
                    kinds[name][words] = (param.name, param.is_flag, param.multiple)
    assert all(len(found) > 1 and len(set(found.values())) == 1 for found in kinds.values())


def test_without_a_file_no_parser_of_toml_is_loaded(tmp_path):
    code = "import sys; from kcore.tools.main import main; main(['version']); print('tomllib' in sys.modules)"
    environment = {"HOME": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines()[-1] == "False"
