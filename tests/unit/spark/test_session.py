"""enable(): a session of the user's own reads by this interpreter, and Spark logs no confusing message."""

import os
import subprocess
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("pyspark")

from kcore.spark import lag
from kcore.spark.session import _choose_python
from tests.unit.spark.data import make_records, write_partition

ROOT = Path(__file__).resolve().parents[3]

SESSION = """
import sys
from kcore.spark import enable
from kcore.spark.java_runtime import use_java
from pyspark.sql import SparkSession

use_java()
builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
spark = builder.config("spark.driver.host", "127.0.0.1").config("spark.driver.bindAddress", "127.0.0.1").getOrCreate()
for _ in range(2):
    enable(spark)
print(spark.read.format("kcore").load(sys.argv[1]).count())
spark.stop()
"""


LOCAL_SESSION = """
import sys
from kcore.spark import local_session

local_session("local[1]")
print("again", file=sys.stderr)
local_session("local[1]")
"""


@pytest.mark.timeout(300)
def test_a_start_says_what_it_waits_for_and_a_session_that_runs_says_nothing():
    done = subprocess.run([sys.executable, "-c", LOCAL_SESSION], cwd=ROOT, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    start, _, again = done.stderr.partition("again\n")
    assert start.count("starting Java and Spark, local[1]\n") == 1  # Java needs more than a second anywhere
    assert "starting" not in again
    assert "replaced a statically registered data source" not in done.stderr


@pytest.mark.timeout(300)
def test_a_session_without_pyspark_python_reads_by_this_interpreter_and_warns_of_nothing_of_ours(tmp_path):
    data = tmp_path / "data"
    data.mkdir()
    write_partition(data, make_records("t", 0, 100))
    bin_dir = tmp_path / "bin"
    bin_dir.mkdir()
    (bin_dir / "python3").write_text("#!/bin/sh\nexit 3\n")
    (bin_dir / "python3").chmod(0o755)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYSPARK_")}
    environment |= {"PATH": f"{bin_dir}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT), "SPARK_LOCAL_IP": "127.0.0.1"}
    done = subprocess.run(
        [sys.executable, "-c", SESSION, str(data)],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert (done.returncode, done.stdout.strip()) == (0, "100"), done.stderr
    assert "DataSourceManager" not in done.stderr and "replaced" not in done.stderr


def session(master: str) -> SimpleNamespace:
    return SimpleNamespace(sparkContext=SimpleNamespace(master=master, pythonExec="python3"))


def test_only_where_it_is_missing_pyspark_python_is_set(monkeypatch):
    monkeypatch.setenv("PYSPARK_PYTHON", "/opt/other/python")
    chosen = session("local[2]")
    _choose_python(chosen)
    assert (chosen.sparkContext.pythonExec, os.environ["PYSPARK_PYTHON"]) == ("python3", "/opt/other/python")
    monkeypatch.delenv("PYSPARK_PYTHON")
    _choose_python(chosen)
    assert chosen.sparkContext.pythonExec == os.environ["PYSPARK_PYTHON"] == sys.executable


def test_on_a_cluster_its_absence_is_a_warning(monkeypatch):
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    chosen = session("spark://far.example:7077")
    with pytest.warns(
        UserWarning, match="PYSPARK_PYTHON is not set: executors of spark://far.example:7077 run `python3`"
    ):
        _choose_python(chosen)
    assert chosen.sparkContext.pythonExec == "python3" and "PYSPARK_PYTHON" not in os.environ
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _choose_python(SimpleNamespace())  # Spark Connect


def test_before_the_first_batch_there_is_no_lag():
    assert lag(None) == {}
