"""kcore completion: the shells themselves complete with the script."""

import os
import pty
import select
import shutil
import socket
import subprocess
import sys
import time

import pytest

import kcore
from kcore.tools import cluster_names
from kcore.tools.main import COMMANDS, main
from tests.unit.server.transactions import SETTINGS
from tests.unit.tools.command import LOG
from tests.unit.tools.test_groups import commit, coordinator

#: What is typed after "kcore ", and what the shell then runs.
TYPED = [
    ("veri\t--jo\t2", "verify --jobs 2"),
    ("repair --salvage kee\tx", "repair --salvage keep-after x"),
    ("spark recom\t--cod\tzstd", "spark recompress --codec zstd"),
    (f"dump orders-0/{LOG[:5]}\t", f"dump orders-0/{LOG}"),
    ("serve --data ord\t", "serve --data orders-0"),
]

SHELLS = ["bash", "zsh", "fish"]
#: The shells run `kcore` to complete.
PATH = f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}"

#: What the shell reads first: the function `kcore` prints its arguments, and the prompt shows that the shell is ready.
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
    environment = {"PATH": PATH, "HOME": str(home), "ZDOTDIR": str(home), "TERM": "dumb"}
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
    environment = {"PATH": PATH, "HOME": str(tmp_path)}
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


def offered(monkeypatch, capsys, words: str) -> list[str]:
    """What a shell gets for the last word; nothing may go to stderr."""
    monkeypatch.setenv("_KCORE_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", f"kcore {words}")
    monkeypatch.setenv("COMP_CWORD", str(len(f"kcore {words}".split(" ")) - 1))
    assert main([]) == 0
    out, err = capsys.readouterr()
    assert not err
    return [line.removeprefix("plain,") for line in out.splitlines() if line]


def test_it_knows_every_command_and_imports_none_of_them(monkeypatch, capsys):
    assert offered(monkeypatch, capsys, "") == list(COMMANDS)
    code = "import sys; from kcore.tools.main import main; main(); print('kcore.tools.verify' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)  # the same request
    assert done.stdout.splitlines()[-1] == "False"


@pytest.fixture(scope="module")
def cluster():
    with kcore.Cluster(1, **SETTINGS) as cluster:
        for topic in ("orders", "ordinals", "payments"):
            cluster.create_topic(topic)
        with coordinator(cluster, "billing") as (client, _):
            commit(client, "billing", {("orders", 0): 0})
        cluster.transaction("shop")
        yield cluster


@pytest.mark.parametrize(
    ("words", "names"),
    [
        ("consume or", ["orders", "ordinals"]),
        ("consume ", ["orders", "ordinals", "payments"]),
        ("consume __", ["__consumer_offsets", "__transaction_state"]),
        ("consume --topic pay", ["payments"]),
        ("topics describe orders pay", ["payments"]),
        ("explain isr pay", ["payments"]),
        ("acls list --topic pay", ["payments"]),
        ("acls add --group b", ["billing"]),
        ("quotas set --user u prod", ["producer_byte_rate"]),
        ("quotas unset --ip 10.0.0.1 ", ["connection_creation_rate"]),
        ("logdirs list pay", ["payments"]),
        ("logdirs move pay", ["payments"]),
        ("logdirs list --broker ", ["0"]),
        ("explain lso pay", ["payments"]),
        ("configs describe --topic pay", ["payments"]),
        ("configs describe --broker ", ["0"]),
        ("configs set --group b", ["billing"]),
        ("configs set --topic orders segment.b", ["segment.bytes"]),
        ("configs unset --broker 0 num.io", ["num.io.threads"]),
        ("configs explain num.io", ["num.io.threads"]),
        ("elect pay", ["payments"]),
        ("reassign pay", ["payments"]),
        ("produce pay", ["payments"]),
        ("mirror pay", ["payments"]),
        ("mirror payments nowhere", ["dir,nowhere"]),
        ("groups reset billing --topic pay", ["payments"]),
        ("groups describe b", ["billing"]),
        ("groups describe --topic pay", ["payments"]),
        ("groups delete b", ["billing"]),
        ("groups reset b", ["billing"]),
        ("consume orders --group b", ["billing"]),
        ("txns describe sh", ["shop"]),
        ("txns describe ", ["shop"]),
        ("txns open pay", ["payments"]),
        ("txns abort pay", ["payments"]),
        ("txns list --state Prep", ["PrepareCommit", "PrepareAbort"]),
    ],
)
def test_names_of_topics_and_groups_come_from_the_cluster(words, names, cluster, monkeypatch, capsys):
    monkeypatch.setenv("KCORE_BOOTSTRAP", cluster.bootstrap_servers)
    monkeypatch.setattr(cluster_names, "_TIMEOUT_MS", 60_000)  # a person at a shell would not wait so long
    assert offered(monkeypatch, capsys, words) == names


def test_the_cluster_is_that_of_the_option_or_of_the_configuration_file(cluster, monkeypatch, capsys, tmp_path):
    monkeypatch.delenv("KCORE_BOOTSTRAP", raising=False)
    assert offered(monkeypatch, capsys, f"consume --bootstrap {cluster.bootstrap_servers} pay") == ["payments"]
    (tmp_path / "config.toml").write_text(f'bootstrap = "{cluster.bootstrap_servers}"')
    monkeypatch.setenv("KCORE_CONFIG", str(tmp_path / "config.toml"))
    assert offered(monkeypatch, capsys, "consume pay") == ["payments"]


@pytest.mark.parametrize("bootstrap", ["127.0.0.1:1", "no address:x"])
def test_without_a_cluster_no_name_and_no_error_is_shown(bootstrap, monkeypatch, capsys):
    monkeypatch.setenv("KCORE_BOOTSTRAP", bootstrap)
    assert offered(monkeypatch, capsys, "consume or") == []


def test_a_cluster_that_never_answers_offers_no_name(monkeypatch, capsys):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("KCORE_BOOTSTRAP", f"127.0.0.1:{silent.getsockname()[1]}")
        assert offered(monkeypatch, capsys, "consume or") == []


def test_a_wrong_configuration_file_does_not_keep_options_from_being_completed(monkeypatch, capsys, tmp_path):
    (tmp_path / "config.toml").write_text("what = 1")
    monkeypatch.setenv("KCORE_CONFIG", str(tmp_path / "config.toml"))
    assert offered(monkeypatch, capsys, "verify --comp") == ["--compacted"]


@pytest.mark.parametrize(
    ("shell", "words", "cword"),
    [
        ("bash", "kcore veri", "x"),  # fish has the word itself there
        ("zsh", "kcore veri", "x"),
        ("fish", "kcore veri", " "),
        *((shell, *words) for shell in SHELLS for words in [("kcore veri", None), (None, "1"), (None, None)]),
    ],
)
def test_variables_that_no_shell_sets_so_complete_nothing(shell, words, cword, monkeypatch, capsys):
    monkeypatch.setenv("_KCORE_COMPLETE", f"{shell}_complete")
    for name, value in (("COMP_WORDS", words), ("COMP_CWORD", cword)):
        monkeypatch.delenv(name, raising=False)
        if value is not None:
            monkeypatch.setenv(name, value)
    assert main([]) == 1
    assert capsys.readouterr() == ("", "")
