"""What the README and examples/ ask a newcomer to type works unchanged."""

import re
import runpy
import subprocess
import sys

import pytest

import kcore
from tests.golden_data import partition_dir
from tests.pages import ROOT, python_examples
from tests.terminal import is_like


def python_blocks() -> list[str]:
    return [str(example.parsed) for example in python_examples("README.md")]


def run(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    return done.stdout


def test_the_fixture_of_the_readme_is_there_without_anything_to_configure(tmp_path):
    (tmp_path / "test_orders.py").write_text(python_blocks()[0])
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", tmp_path],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0 and "1 passed" in done.stdout, done.stdout + done.stderr


def test_the_readme_writes_and_reads_a_topic_with_a_client():
    assert run(python_blocks()[1]) == "b'a book'\n"


def test_the_readmes_cluster_goes_on_without_a_broker():
    addresses, leader, isr = run(python_blocks()[2]).split(maxsplit=2)
    assert addresses.count(":") == 3 and int(leader) in eval(isr) and set(eval(isr)) < {0, 1, 2}


def test_the_readme_reads_a_log_without_a_broker():
    code = python_blocks()[3]
    assert "/var/lib/kafka/orders-0" in code and "start_offset=1000" in code
    pytest.importorskip("duckdb")
    code = code.replace("/var/lib/kafka/orders-0", str(partition_dir("g-txn-0"))).replace("=1000", "=0")
    code = code.replace("/var/lib/kafka", str(partition_dir("g-txn-0").parent)).replace('"orders"', '"g-txn"')
    shown = run(code.replace("2026-11-01", "2023-11-01"))
    assert shown.startswith("0 1700000000000 ") and "count_star()" in shown


def test_the_quickstart_reads_back_what_it_wrote():
    with kcore.Broker() as broker:
        command = [sys.executable, str(ROOT / "examples/quickstart.py"), broker.bootstrap_servers]
        done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr
    assert [line.split()[-1] for line in done.stdout.splitlines()] == [f"{n}'" for n in range(10)]


def test_the_cluster_survives_its_leader_and_ends_by_itself():
    command = [sys.executable, str(ROOT / "examples/cluster.py")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 of them are lost, 0 are there twice" in done.stdout
    assert done.stdout.count(": equal") == 6 and "is killed after" in done.stdout


def test_a_producer_goes_on_when_the_leaders_process_is_killed_and_the_readme_shows_after_how_long():
    text = (ROOT / "README.md").read_text()
    (shown,) = re.findall(r"^    \$ python examples/failover.py.*\n((?:    .*\n)+)", text, re.M)
    command = [sys.executable, str(ROOT / "examples/failover.py")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert is_like(re.sub("^    ", "", shown, flags=re.M), done.stdout), done.stdout


def test_the_next_leader_that_failover_names_is_the_one_of_the_answer_that_ended_its_wait(monkeypatch):
    """The answer after it may be of the other broker, which has not had the new metadata."""
    failover = runpy.run_path(str(ROOT / "examples/failover.py"))
    answers = iter([1, -1, 0, 1])
    wait_for_another_leader = failover["wait_for_another_leader"]
    monkeypatch.setitem(wait_for_another_leader.__globals__, "leader_of", lambda admin: next(answers))
    leader, _ = wait_for_another_leader(1, [("127.0.0.1", 1)] * 3)
    assert leader == 0
