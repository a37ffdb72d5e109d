"""kcore spark: the command line of the jobs; what they find is tested in tests/unit/spark."""

import json
import re
import shutil
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from kcore.tools import spark as spark_command
from kcore.tools.main import main
from kcore.tools.spark import short_error
from tests import golden_data
from tests.unit.spark.conftest import spark as spark
from tests.unit.spark.data import make_records, write_partition
from tests.unit.tools.command import LOG, flip
from tests.unit.tools.test_diff import plain, replica
from tests.unit.tools.test_json_fields import SPARK_COMMANDS, check, directories_in


@pytest.fixture
def kcore_spark(spark, monkeypatch, capsys):
    """Runs `kcore spark ...` in the tests' session: exit status, lines on stdout, text on stderr."""

    @contextmanager
    def session(args):
        with monkeypatch.context() as patched:
            patched.setattr(spark, "stop", lambda: None)
            patched.setattr("kcore.spark.session.local_session", lambda *_, **__: spark)
            with real_session(args) as session_in_use:
                yield session_in_use

    real_session = spark_command.session
    monkeypatch.setattr(spark_command, "session", session)

    def run(*arguments):
        status = main(["spark", *map(str, arguments)])
        out, err = capsys.readouterr()
        return status, out.splitlines(), err

    return run


@pytest.fixture
def data(tmp_path) -> Path:
    return Path(shutil.copytree(golden_data.data_dir(), tmp_path / "data"))


def test_verify_prints_what_kcore_verify_prints(kcore_spark, capsys, data):
    status, lines, err = kcore_spark("verify", "-q", data)
    assert (status, err) == (0, "") and "no damage" in lines[-1]
    flip(data / "g-none-0" / LOG, 100)
    for arguments in ([], ["--json"], ["--json", "--no-records"]):
        status, lines, err = kcore_spark("verify", "-q", *arguments, data)
        assert (status, err) == (1, "")
        assert main(["verify", "-q", *arguments, str(data)]) == 1
        expected = capsys.readouterr().out.splitlines()
        assert sorted(lines[:-1]) == sorted(expected[:-1])
        if arguments:
            summary, other = json.loads(lines[-1]), json.loads(expected[-1])
            assert {name: other[name] for name in summary if name != "seconds"} == {
                name: value for name, value in summary.items() if name != "seconds"
            }


@pytest.mark.parametrize("command", SPARK_COMMANDS)
def test_the_page_lists_the_fields_that_json_has_with_their_types(command, kcore_spark, tmp_path):
    names = directories_in(tmp_path) | {"new": tmp_path / "new"}
    shown = []
    for line in SPARK_COMMANDS[command]:
        status, lines, _ = kcore_spark(command.removeprefix("spark "), *line.format(**names).split(), "--json")
        assert status in (0, 1)
        shown += map(json.loads, lines)
    check(command, shown)


def test_a_current_directory_that_has_vanished_is_named(data, tmp_path):
    gone = tmp_path / "gone"
    gone.mkdir()
    code = "import os, sys; os.rmdir(os.getcwd()); from kcore.tools.main import main; sys.exit(main(sys.argv[1:]))"
    done = subprocess.run(
        [sys.executable, "-c", code, "spark", "verify", str(data)],
        cwd=gone,
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
    )
    reason = "kcore: the current directory is not there any more, and Spark needs one: cd to another\n"
    assert (done.returncode, done.stdout, done.stderr) == (2, "", reason)


def test_reindex_prints_each_file_and_checks(kcore_spark, data):
    (data / "g-segments-0" / f"{30:020}.index").unlink()
    assert kcore_spark("reindex", "-q", "--check", data)[0] == 1
    status, lines, _ = kcore_spark("reindex", "-q", "--dry-run", data)
    assert status == 0 and any("missing; would write" in line for line in lines)
    status, lines, _ = kcore_spark("reindex", "-q", "--json", data)
    events = [json.loads(line) for line in lines]
    assert status == 0 and {event["type"] for event in events} == {"index"}
    assert {event["done"] for event in events if event["status"] == "missing"} == {"written"}
    assert kcore_spark("reindex", "-q", "--check", data)[0] == 0
    flip(data / "g-none-0" / LOG, 100)
    status, lines, _ = kcore_spark("reindex", "-q", data)
    assert status == 1 and any("refused" in line for line in lines)


def test_recompress_makes_the_output_directory(kcore_spark, data, tmp_path):
    output = tmp_path / "smaller"
    status, lines, _ = kcore_spark("recompress", "-q", "--json", data, output, "--codec", "zstd", "--level", 5)
    *segments, summary = map(json.loads, lines)
    assert status == 0 and summary["type"] == "summary" and len(segments) == summary["segments"]
    assert summary["recompressed"] > 0 and (output / "g-none-0" / LOG).is_file()
    assert main(["verify", "-q", str(output)]) == 0
    for arguments, text in (
        ([data, output, "--codec", "zstd"], "must not exist"),
        ([data, tmp_path / "other", "--codec", "zstandard"], "no codec 'zstandard'; did you mean zstd"),
    ):
        status, _, err = kcore_spark("recompress", "-q", *arguments)
        assert status == 2 and text in err and err.count("\n") == 1


def test_compaction_and_diff_say_a_line_for_each_partition(kcore_spark, tmp_path):
    a, b = tmp_path / "a", tmp_path / "b"
    a.mkdir()
    for partition in range(2):
        write_partition(a, make_records("t", partition, 200))
    shutil.copytree(a, b)
    assert kcore_spark("diff", "-q", a, b)[:2] == (
        0,
        [*(f"t-{n}: the same from offset 0 to below 200" for n in range(2)), "2 partitions, 0 different"],
    )
    shutil.rmtree(b / "t-1")
    status, lines, _ = kcore_spark("diff", "-q", a, b)
    assert status == 1 and lines[1] == "t-1: only A has this partition"
    status, lines, _ = kcore_spark("diff", "-q", "--json", a, b)
    assert status == 1 and [json.loads(line)["equal"] for line in lines[:-1]] == [True, False]
    status, lines, _ = kcore_spark("compaction", "-q", a)
    assert status == 0 and len(lines) == 2 and "200 records, 17 keys (4 deleted); 183 dead" in lines[0]
    rows = [json.loads(line) for line in kcore_spark("compaction", "-q", "--json", a)[1]]
    assert [row["records"] for row in rows] == [200, 200]
    flip(a / "t-0" / LOG, 100)
    status, _, err = kcore_spark("compaction", "-q", a)
    assert status == 2 and err.count("\n") == 1 and "CRC-32C" in err and "Traceback" not in err and "\tat " not in err


def test_diff_prints_what_one_side_lacks_as_the_plain_command_does(kcore_spark, capsys, tmp_path):
    replica(tmp_path / "a" / "t-0", plain(0, 100, 1))
    replica(tmp_path / "b" / "t-0", plain(0, 100, 1), skip=range(30, 60))
    for options, text in (
        ((), "  B lacks offsets 30 to 59, 30 records: nothing shows that cleaning removed them"),
        (("--gaps-are-cleaning",), "  note: B lacks offsets 30 to 59, as after cleaning"),
    ):
        different = int(not options)
        assert main(["diff", "-q", *options, str(tmp_path / "a"), str(tmp_path / "b")]) == different
        assert text in capsys.readouterr().out.splitlines()
        assert kcore_spark("diff", "-q", *options, tmp_path / "a", tmp_path / "b")[:2] == (
            different,
            ["t-0: the same but for the gaps from offset 0 to below 100", text, f"1 partition, {different} different"],
        )


def test_load_prints_each_run_and_writes_its_rows_and_a_plot(kcore_spark, tmp_path):
    (tmp_path / "data").mkdir()
    write_partition(tmp_path / "data", make_records("t", 0, 2000))
    rows, picture = tmp_path / "rows.jsonl", tmp_path / "plot.svg"
    load = ("load", "--mode", "read", "--seconds", "0.3", "--warm-up", "0.1", tmp_path / "data")
    status, lines, err = kcore_spark(*load, "-q", "--tasks", 2, "--json", rows, "--plot", picture)
    assert (status, err) == (0, "")
    assert lines[0].startswith("read, 2 tasks: ") and "records/s" in lines[0] and "p99.9" in lines[1]
    assert [json.loads(line)["type"] for line in rows.read_text().splitlines()] == ["task", "task", "run"]
    assert "throughput" in picture.read_text()
    status, lines, err = kcore_spark(*load[:-1], tmp_path / "missing")
    assert (status, lines) == (2, []) and "missing: there is no such directory" in err
    status, lines, err = kcore_spark(*load, "--tasks", 3)
    assert (status, lines) == (2, []) and "--tasks 3: local[2] runs only 2 at a time" in err and err.count("\n") == 1


def test_archive_prints_how_executors_get_it(tmp_path, capsys):
    assert main(["spark", "archive", str(tmp_path / "kcore.tgz")]) == 0
    text = capsys.readouterr().out
    assert f"--conf spark.archives={tmp_path}/kcore.tgz#kcore" in text and "PYTHONPATH=./kcore" in text
    assert (tmp_path / "kcore.tgz").stat().st_size > 100_000


def test_an_impossible_command_is_refused_in_one_line_before_spark_starts(tmp_path, capsys):
    for arguments, text in (
        (["verify", tmp_path / "missing"], "No such file or directory"),
        (["diff", tmp_path, tmp_path / "missing"], "No such file or directory"),
        (["verify", "--recrods", tmp_path], "no option --recrods; did you mean --records"),
        (["verify", "--conf", "nothing", tmp_path], "expected NAME=VALUE"),
        (["verify"], "PATH"),
        (["verfy", tmp_path], "no command 'verfy'; `kcore spark --help` lists them; did you mean verify"),
        (["recompress", tmp_path, tmp_path / "out"], "--codec"),
        (["load", "--mode", "append"], "--mode append needs a PATH"),
        (["load", "--mode", "append", "--tasks", "two", tmp_path], "--tasks 'two'"),
        (["load", "--mode", "append", "--recrod-size", "5", tmp_path], "did you mean --record-size"),
        (["load", "--mode", "append", "--plot", "x.pdf", tmp_path], ".png or .svg"),
        (["load", "--mode", "append", "--json", tmp_path / "no" / "rows", tmp_path], "No such file or directory"),
        (["archive", tmp_path / "kcore.zip"], ".tgz"),
    ):
        assert main(["spark", *map(str, arguments)]) == 2
        out, err = capsys.readouterr()
        assert text in err and not out
    assert main(["spark", "--help"]) == 0
    assert re.search("recompress +rewrite a closed directory", capsys.readouterr().out)


def test_an_error_of_sparks_is_one_line():
    worker = """An error occurred while calling o62.collectToPython.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 failed: Traceback (most recent call last):
  File "worker.py", line 2297, in main
    process()
  File "compaction.py", line 141, in _seen_in
    raise CorruptFile(text)
kcore.errors.CorruptFile: a.log: position 0: CRC-32C at position 0: expected 1, found 2

\tat org.apache.spark.api.python.BasePythonRunner$ReaderIterator.handlePythonException(PythonRunner.scala:581)
\tat java.base/java.lang.Thread.run(Thread.java:840)
"""
    assert short_error(RuntimeError(worker)) == "a.log: position 0: CRC-32C at position 0: expected 1, found 2"
    java = """An error occurred while calling None.org.apache.spark.api.java.JavaSparkContext.
: org.apache.spark.SparkException: Could not parse Master URL: 'locl'
\tat org.apache.spark.SparkContext$.createTaskScheduler(SparkContext.scala:3251)
"""
    assert short_error(RuntimeError(java)) == "Could not parse Master URL: 'locl'"
    assert short_error(RuntimeError("[PATH_NOT_FOUND] Path does not exist: x.\nmore")) == (
        "[PATH_NOT_FOUND] Path does not exist: x."
    )


def test_without_pyspark_the_error_names_the_extra(tmp_path):
    code = "import sys; sys.modules['pyspark'] = None; from kcore.tools.main import main; sys.exit(main(sys.argv[1:]))"
    done = subprocess.run(
        [sys.executable, "-c", code, "spark", "verify", str(tmp_path)], capture_output=True, text=True
    )
    assert done.returncode == 2 and "pip install 'kcore[spark]'" in done.stderr and done.stderr.count("\n") == 1


def test_the_command_by_itself_starts_spark_reports_it_and_keeps_sparks_messages_off_stderr(data):
    """In a process of its own: stdout has nothing but the result, and the session ends with the command."""
    flip(data / "g-none-0" / LOG, 100)
    done = subprocess.run(
        [sys.executable, "-m", "kcore.tools.main", "spark", "verify", "--json", "--master", "local[2]", data],
        capture_output=True,
        text=True,
        timeout=280,
    )
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 1 and lines[-1]["damaged"] >= 1
    assert "starting Java and Spark, local[2]\n" in done.stderr  # Java may have its own word first
    assert "ERROR" not in done.stderr and "WARN " not in done.stderr and "Exception" not in done.stderr
