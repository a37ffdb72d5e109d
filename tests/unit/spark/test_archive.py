import json
import os
import subprocess
import sys
import tarfile
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pyspark
import pytest

import kcore
from kcore.spark import archive
from kcore.spark.archive import usage, write_archive
from kcore.spark.java_runtime import use_java
from kcore.spark.session import LOCAL_CONF

ROOT = Path(kcore.__file__).parent.parent
CHECK = b"123456789"
CRC_OF_CHECK = 0xE3069283  # the published check value of CRC-32C

_WHERE = f"""
import json, kcore, pyspark_kcore
print(json.dumps([kcore.__file__, kcore.crc32c({CHECK!r})]))
"""

#: What spark-submit runs: the load as the command line has it, and before it a look at where kcore comes from.
_SUBMITTED = """
import json
import sys

from pyspark.sql import SparkSession

from kcore.tools.main import main


def where(_):
    import kcore

    yield kcore.__file__, kcore.crc32c(b"123456789")


context = SparkSession.builder.getOrCreate().sparkContext
print(json.dumps(context.parallelize(range(2), 2).mapPartitions(where).collect()), flush=True)
sys.exit(main(sys.argv[1:]))
"""


@pytest.fixture(scope="module")
def packed(tmp_path_factory):
    path = tmp_path_factory.mktemp("archive") / "kcore.tgz"
    return path, write_archive(path)


def test_the_archive_has_what_runs_and_nothing_else(packed):
    path, names = packed
    with tarfile.open(path) as archive:
        assert archive.getnames() == names
        assert all(member.isfile() for member in archive)
    assert {"kcore/__init__.py", "kcore/log/unified_log.py", "kcore/spark/load/load_test.py", "pyspark_kcore.py"} <= {
        *names
    }
    native = {name.partition(".")[0] for name in names if name.endswith(".so")}
    assert native == {str(path.relative_to(ROOT).with_suffix("")) for path in (ROOT / "kcore").rglob("*.pyx")}
    assert not [name for name in names if name.endswith((".c", ".pyx", ".pxd", ".pyc"))]
    assert [entry.name for entry in path.parent.iterdir()] == ["kcore.tgz"]


def test_native_modules_of_another_python_stay_behind(tmp_path, monkeypatch):
    package = tmp_path / "kcore" / "spark"
    package.mkdir(parents=True)
    (package / f"x{EXTENSION_SUFFIXES[0]}").touch()
    (package / "x.cpython-27-x86_64-linux-gnu.so").touch()
    monkeypatch.setattr(archive, "__file__", str(package / "archive.py"))
    assert [name for name in write_archive(tmp_path / "a.tar.gz") if name.endswith(".so")] == [
        f"kcore/spark/x{EXTENSION_SUFFIXES[0]}"
    ]


def test_unpacked_it_can_be_imported(packed, tmp_path):
    with tarfile.open(packed[0]) as archive:
        archive.extractall(tmp_path)  # its own: the argument filter came with Python 3.11.4
    output = subprocess.run(
        [sys.executable, "-c", _WHERE],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        cwd=tmp_path,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    assert json.loads(output) == [str(tmp_path / "kcore" / "__init__.py"), CRC_OF_CHECK]


@pytest.mark.parametrize("name", ["kcore.zip", "kcore", "kcore.tar"])
def test_a_name_that_spark_would_not_unpack_is_refused(tmp_path, name):
    with pytest.raises(ValueError, match=r"\.tgz"):
        write_archive(tmp_path / name)
    assert list(tmp_path.iterdir()) == []


def test_a_failure_leaves_the_old_archive_and_nothing_beside_it(tmp_path, monkeypatch):
    path = tmp_path / "kcore.tgz"
    path.write_bytes(b"old")

    def full(*_, **__):
        raise OSError("no space left")

    monkeypatch.setattr(tarfile.TarFile, "add", full)
    with pytest.raises(OSError, match="no space left"):
        write_archive(path)
    assert [(entry.name, entry.read_bytes()) for entry in tmp_path.iterdir()] == [("kcore.tgz", b"old")]


def test_the_settings_name_the_directory_that_executors_see():
    assert usage("/tmp/my.tgz") == [
        "--conf spark.archives=/tmp/my.tgz#my",
        "--conf spark.executorEnv.PYTHONPATH=./my",
    ]


@pytest.fixture
def spark_home(tmp_path):
    """Spark as it is installed, in a directory where executors may leave their work."""
    home = tmp_path / "spark"
    home.mkdir()
    for entry in Path(pyspark.__file__).parent.iterdir():
        (home / entry.name).symlink_to(entry)
    (home / "work").unlink(missing_ok=True)
    return home


@pytest.mark.skipif("KCORE_LONG" not in os.environ, reason="most of a minute: CI runs it (KCORE_LONG=1)")
@pytest.mark.timeout(600)
def test_spark_submit_runs_a_load_on_executors_that_have_nothing_but_the_archive(packed, tmp_path, spark_home):
    use_java()
    script, data, rows = tmp_path / "load.py", tmp_path / "data", tmp_path / "rows.jsonl"
    script.write_text(_SUBMITTED)
    data.mkdir()
    master = "local-cluster[2,1,1024]"
    options = ["--master", master, "--archives", f"{packed[0]}#kcore", "--conf", "spark.executorEnv.PYTHONPATH=./kcore"]
    options += [word for name, value in LOCAL_CONF.items() for word in ("--conf", f"{name}={value}")]
    load = ["spark", "load", "-q", "--mode", "append", "--tasks", "2", "--seconds", "1", "--warm-up", "0.2"]
    done = subprocess.run(
        [spark_home / "bin" / "spark-submit", *options, script, *load, "--json", rows, data],
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "SPARK_HOME": str(spark_home),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "PYSPARK_PYTHON": sys.executable,
        },
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    places, *output = done.stdout.splitlines()
    for place, crc in json.loads(places):
        # An executor's own directory, not the source tree.
        assert place.startswith(str(spark_home / "work")), place
        assert crc == CRC_OF_CHECK
    assert output[0].startswith("append, 2 tasks: ")
    *tasks, total = [json.loads(line) for line in rows.read_text().splitlines()]
    assert len({row["pid"] for row in tasks}) == len(tasks) == 2
    assert all(row["records"] > 0 and row["master"] == master and row["error"] is None for row in tasks)
    assert total["records"] == sum(row["records"] for row in tasks)
    assert list(data.iterdir()) == []
