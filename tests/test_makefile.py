"""A bare `make` lists the targets; the dependencies of pyproject.toml are read as pip reads them."""

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
#: Steps of other targets.
INTERNAL = {"built", "dev"}


def test_a_bare_make_prints_a_line_for_each_target():
    (phony,) = re.findall(r"^\.PHONY: (.*)", (ROOT / "Makefile").read_text(), re.M)
    done = subprocess.run(
        ["make", "--no-print-directory"], cwd=ROOT, capture_output=True, text=True, timeout=200, check=True
    )
    lines = [line.split(None, 2) for line in done.stdout.splitlines()]
    assert {words[1] for words in lines} == set(phony.split()) - INTERNAL
    assert all(words[0] == "make" and len(words[2]) > 4 for words in lines)


def test_the_development_group_can_be_given_to_any_pip():
    done = subprocess.run(
        [sys.executable, "ci/requirements.py", "build", "run", "dev"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    names = [re.split(r"[<>=;]", line)[0] for line in done.stdout.splitlines()]
    assert {"cython", "numpy", "pytest", "pytest-xdist"} <= set(names)


def test_setup_py_builds_nothing_where_it_is_only_imported():
    # Python 3.14 starts the processes of a pool anew, and each imports the main module under this name.
    code = "import runpy; runpy.run_path('setup.py', run_name='__mp_main__')"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=200)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_make_run_starts_one_broker_and_with_brokers_a_cluster_in_another_directory():
    def command(*variables):
        done = subprocess.run(
            ["make", "--no-print-directory", "-n", "run", *variables],
            cwd=ROOT,
            # Without variables that the Makefile would take over.
            env={"PATH": os.environ["PATH"]},
            capture_output=True,
            text=True,
            timeout=200,
            check=True,
        )
        return done.stdout.replace("\\\n", " ").split("exec ")[-1].split()

    assert command() == [".venv/bin/kcore", "serve", "--data", "data", "--port", "9092", "--hints"]
    cluster = command("BROKERS=3", "STORE=zookeeper://z:2181", "PORT=1")
    assert cluster[1:] == [
        *["serve", "--data", "data-cluster", "--port", "1", "--hints"],
        *["--brokers", "3", "--store", "zookeeper://z:2181"],
    ]
