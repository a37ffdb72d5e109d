"""The commands of the README and docs/spark.md work unchanged, for topics of several partitions too."""

import subprocess
import sys

import kcore
from kcore.record.record_batch_builder import RecordBatchBuilder
from tests.pages import python_examples


def write_orders(data_dir, timestamp=-1):
    """1010 records in each of two partitions, without keys."""
    data_dir.mkdir()
    for partition in range(2):
        builder = RecordBatchBuilder()
        for number in range(1010):
            builder.append(b"%d-%d" % (partition, number), timestamp=timestamp)
        with kcore.open_log(str(data_dir / f"orders-{partition}"), "a") as log:
            log.append_as_leader(builder.build())


def values_in(directory):
    with kcore.open_log(str(directory)) as log:
        return sorted(record.value for record in log.records())


def texts(page):
    return [str(example.parsed) for example in python_examples(page)]


def with_paths(code, paths):
    for named, there in paths.items():
        assert f'"{named}"' in code
        code = code.replace(f'"{named}"', repr(str(there)))
    return code


def test_the_readme_reads_and_writes_with_spark(spark, tmp_path, capsys):
    write_orders(tmp_path / "kafka")
    (code,) = (code for code in texts("README.md") if "spark" in code)
    exec(with_paths(code, {"/var/lib/kafka": tmp_path / "kafka", "copy": tmp_path / "copy"}), {})
    out = capsys.readouterr().out
    assert "|        0|   10|" in out and "|        1|   10|" in out
    assert values_in(tmp_path / "copy" / "orders-0") == sorted(
        b"%d-%d" % (partition, number) for partition in range(2) for number in range(1000, 1010)
    )


def test_the_first_examples_of_the_page_read_a_directory_and_write_another(spark, tmp_path):
    write_orders(tmp_path / "data")
    blocks = texts("docs/spark.md")
    (write,) = (block for block in blocks if '"/data/kafka"' in block and ".write." in block)
    files, _through_a_broker = write.split("\n\n")
    scope = {}
    exec(with_paths(blocks[0], {"data": tmp_path / "data"}), scope)
    exec(with_paths(files, {"/data/kafka": tmp_path / "kafka"}), scope)
    assert values_in(tmp_path / "kafka" / "orders-0") == sorted(
        b"%d-%d" % (partition, number) for partition in range(2) for number in range(1010)
    )


def test_the_example_that_writes_through_a_broker_does(spark, tmp_path):
    write_orders(tmp_path / "data", timestamp=1_700_000_000_000)
    orders = spark.read.format("kcore").load(str(tmp_path / "data"))
    records = orders.where("topic = 'orders'").drop("partition")
    (write,) = (block for block in texts("docs/spark.md") if '"/data/kafka"' in block and ".write." in block)
    _files, through_a_broker = write.split("\n\n")
    with kcore.Broker() as broker:
        exec(through_a_broker.replace("localhost:9092", broker.bootstrap_servers), {"records": records})
        assert len(list(broker.consume("orders"))) == 2020


def test_the_stream_of_the_page_copies_a_directory_to_parquet(spark, tmp_path):
    write_orders(tmp_path / "data")
    (code,) = (block for block in texts("docs/spark.md") if "readStream" in block)
    paths = {name: tmp_path / name for name in ("data", "out", "checkpoint")}
    exec(with_paths(code, paths), {"spark": spark})
    assert spark.read.parquet(str(tmp_path / "out")).count() == 2020


def test_the_job_of_the_page_verifies_a_directory(spark, tmp_path, capsys):
    write_orders(tmp_path / "data")
    (code,) = (block for block in texts("docs/spark.md") if "jobs.verify" in block)
    exec(with_paths(code, {"data": tmp_path / "data"}), {})
    assert "1010" in capsys.readouterr().out


def test_the_two_lines_for_spark_submit_are_the_command():
    (code,) = (block for block in texts("docs/spark.md") if "SystemExit" in block)
    command = [sys.executable, "-c", code, "spark", "load", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=True)
    assert "--tasks" in done.stdout
