"""Which cluster a command asks: --bootstrap, $KCORE_BOOTSTRAP, or port 9092 of this machine."""

import pytest

import kcore
from kcore.tools.bootstrap import default_bootstrap
from kcore.tools.command_line import DEFAULT_BOOTSTRAP
from kcore.tools.commands import whole_tree
from kcore.tools.main import kcore as kcore_command
from kcore.tools.main import main

#: Commands without arguments that are not there, and where each says that nobody listens.
ASKING = [
    ["cluster"],
    ["topics", "list"],
    ["groups", "list"],
    ["reassign", "--status"],
    ["elect", "orders"],
    ["mirror", "orders", "copy"],
    ["explain", "isr", "orders"],
    ["metrics"],
]


@pytest.fixture(scope="module")
def broker():
    with kcore.Broker() as broker:
        broker.create_topic("orders")
        yield broker


@pytest.fixture(autouse=True)
def in_a_directory_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("words", ASKING, ids=" ".join)
def test_the_environment_names_the_cluster_and_the_error_says_so(words, monkeypatch, capsys):
    monkeypatch.setenv("KCORE_BOOTSTRAP", "127.0.0.1:1")
    assert main(words) == 2
    *_, last = capsys.readouterr().err.splitlines()
    assert "127.0.0.1:1: " in last and last.endswith(" (the address comes from KCORE_BOOTSTRAP)")


@pytest.mark.parametrize("words", ASKING[:-2], ids=" ".join)
def test_where_nobody_listens_at_the_default_address_the_error_says_what_to_do(words, monkeypatch, capsys):
    (command,) = (
        command for path, command in whole_tree(kcore_command) if path == " ".join(words[: len(path.split())])
    )
    monkeypatch.delenv("KCORE_BOOTSTRAP", raising=False)
    (option,) = (param for param in command.params if param.name == "bootstrap")
    monkeypatch.setattr(option, "default", "127.0.0.1:1")
    assert main(words) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith(
        "127.0.0.1:1: Connection refused (the default address: `kcore serve --data DIR` starts a broker there; "
        "--bootstrap or KCORE_BOOTSTRAP names another one)"
    )


@pytest.mark.parametrize("words", ASKING, ids=" ".join)
@pytest.mark.parametrize("option", ["--bootstrap", "--bootstrap-server"])
def test_an_option_wins_over_the_environment_in_either_spelling(words, option, monkeypatch, capsys):
    monkeypatch.setenv("KCORE_BOOTSTRAP", "127.0.0.1:1")
    assert main([*words, option, "127.0.0.1:2"]) == 2
    error = capsys.readouterr().err
    assert "127.0.0.1:2: " in error and "KCORE_BOOTSTRAP" not in error


def test_every_option_that_names_a_cluster_has_both_spellings():
    options = [param.opts for _, command in whole_tree(kcore_command) for param in command.params]
    found = [names for names in options if "--bootstrap" in names]
    assert len(found) > 10 and all("--bootstrap-server" in names for names in found)


def test_an_address_in_the_environment_that_is_none_is_named_with_the_variable(monkeypatch, capsys):
    monkeypatch.setenv("KCORE_BOOTSTRAP", "localhost:ninety")
    assert main(["topics", "list"]) == 2
    assert capsys.readouterr().err == "kcore: KCORE_BOOTSTRAP: 'localhost:ninety' is no HOST:PORT\n"


def test_an_empty_variable_is_none(monkeypatch):
    monkeypatch.setenv("KCORE_BOOTSTRAP", "")
    assert default_bootstrap() == DEFAULT_BOOTSTRAP


def test_the_cluster_of_the_environment_answers(broker, monkeypatch, capsys):
    monkeypatch.setenv("KCORE_BOOTSTRAP", broker.bootstrap_servers)
    assert main(["topics", "list"]) == 0
    assert capsys.readouterr() == ("orders\n", "")
    # An error that is not about the address does not name the variable.
    assert main(["topics", "describe", "ordres"]) == 2
    assert "KCORE_BOOTSTRAP" not in capsys.readouterr().err


def test_a_mirror_takes_the_cluster_from_its_first_word_or_an_option_but_not_from_both(broker, tmp_path, capsys):
    address = broker.bootstrap_servers
    for words in (
        [address, "orders", "a"],
        [address, "--partitions", "0", "orders", "b"],
        ["--bootstrap", address, "orders", "c"],
    ):
        assert main(["mirror", *words]) == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b", "c"]
    assert main(["mirror", address, "orders", "d", "--bootstrap", address]) == 2
    assert "BOOTSTRAP and --bootstrap are the same" in capsys.readouterr().err


def test_a_data_directory_is_asked_whatever_the_environment_says(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("KCORE_BOOTSTRAP", "127.0.0.1:1")
    with kcore.Broker(tmp_path / "data"):
        assert main(["metrics", "--data", str(tmp_path / "data"), "--match", "BytesInPerSec"]) == 0
