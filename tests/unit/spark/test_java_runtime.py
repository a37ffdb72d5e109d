import os
import subprocess
import sys

import pytest

from kcore.spark import java_runtime
from kcore.spark.java_runtime import java_home_with_shim, java_version, use_java
from tests.unit.spark.data import make_records, write_partition

_QUERY = """
import os, sys
from kcore.spark import java_runtime, local_session
os.environ["JAVA_HOME"] = java_runtime.wheel_home()
spark = local_session("local-cluster[2,1,1024]")
frame = spark.read.format("kcore").option("minPartitions", "4").load(sys.argv[1])
print("found", frame.where("offset >= 10").count(), frame.rdd.getNumPartitions())
spark.stop()
"""


def test_a_java_that_is_new_enough_is_taken_as_it_is(monkeypatch):
    monkeypatch.setenv("JAVA_HOME", java_runtime.wheel_home())
    before = os.environ["JAVA_HOME"]
    assert use_java() == before == os.environ["JAVA_HOME"]


def test_a_java_that_is_too_old_is_passed_over_for_the_wheels(monkeypatch, tmp_path):
    (tmp_path / "bin").mkdir()
    old = tmp_path / "bin" / "java"
    old.write_text("#!/bin/sh\necho 'openjdk version \"1.8.0_402\"' >&2\n")
    old.chmod(0o755)
    assert java_version(str(old)) == 8
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/nowhere")
    assert use_java() == os.environ["JAVA_HOME"] == java_runtime.wheel_home()


def test_what_does_not_run_is_no_java(tmp_path):
    assert java_version(str(tmp_path / "java")) == 0


def test_the_wheels_java_is_run_without_the_module_that_it_lacks(tmp_path):
    (tmp_path / "bin").mkdir()
    java = tmp_path / "bin" / "java"
    java.write_text('#!/bin/sh\nprintf "%s|" "$@"\n')
    java.chmod(0o755)
    shim = os.path.join(java_home_with_shim(str(tmp_path)), "bin", "java")
    flags = ["-cp", "a b", "--add-modules=jdk.incubator.vector", "Main", ""]
    assert subprocess.run([shim, *flags], capture_output=True, text=True).stdout == "-cp|a b|Main||"


@pytest.mark.skipif("KCORE_LONG" not in os.environ, reason="a minute: CI runs it (KCORE_LONG=1)")
@pytest.mark.timeout(300)
def test_executors_in_processes_of_their_own_read_what_the_driver_planned(tmp_path):
    """On the wheel's Java, so that this too is seen to work."""
    write_partition(tmp_path, make_records("orders", 0, 500))
    environment = {**os.environ, "SPARK_WORKER_DIR": str(tmp_path / "work")}
    command = [sys.executable, "-c", _QUERY, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, env=environment)
    assert "found 490 4" in done.stdout, done.stderr[-3000:]
