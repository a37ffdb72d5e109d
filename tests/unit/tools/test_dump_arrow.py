"""kcore dump --format arrow and parquet: the tables say what the JSON lines say."""

import json
import shutil
import subprocess
import sys

import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet as pq
import pytest

from kcore.log.lost_records import meaning_of, write_mark
from kcore.tools import parquet_output
from kcore.tools.main import main
from tests import golden_data
from tests.unit.tools.command import LOG


def entries(capsys, path, *options) -> list[dict]:
    assert main(["dump", "--json", str(path), *options]) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def as_shown(value):
    """An Arrow value the way a JSON line has it."""
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return {"hex": value.hex()}
    if isinstance(value, list):
        return [[as_shown(header["key"]), as_shown(header["value"])] for header in value]
    return value


def read_table(path):
    return pq.read_table(path) if path.suffix == ".parquet" else pa.ipc.open_file(path).read_all()


@pytest.mark.parametrize("file_format", ["arrow", "parquet"])
@pytest.mark.parametrize("options", [(), ("--no-records",)])
def test_each_kind_of_file_becomes_a_table_with_the_rows_of_the_json_lines(options, file_format, tmp_path, capsys):
    output = tmp_path / "tables"
    assert main(["dump", str(golden_data.data_dir()), "--format", file_format, "-o", str(output), *options]) == 0
    assert capsys.readouterr() == ("", "")
    kinds = ["records" if not options else "batches", "index", "timeindex", "txnindex", "snapshot"]
    kinds += ["offset-checkpoint", "leader-epoch-checkpoint", "partition.metadata", "meta.properties"]
    assert {path.name for path in output.iterdir()} == {
        f"{kind}.{file_format}" for kind in [*kinds, "kafka_cleanshutdown"]
    }
    events = entries(capsys, golden_data.data_dir(), *options)
    kind_of_file = {event["file"]: event["kind"].lstrip(".") for event in events if event["type"] == "file"}
    for kind in kinds:
        rows = read_table(output / f"{kind}.{file_format}").to_pylist()
        if kind in ("records", "batches"):
            expected_rows = [event for event in events if event["type"] == kind.rstrip("s").replace("batche", "batch")]
        else:
            expected_rows = [e for e in events if e["type"] == "entry" and kind_of_file[e["file"]] == kind]
        assert len(rows) == len(expected_rows) > 0, kind
        for row, event in zip(rows, expected_rows, strict=True):
            if kind == "records":
                row = record_row(row)
            assert {name: as_shown(value) for name, value in row.items() if name in event} == {
                name: value for name, value in event.items() if name in row
            }


def record_row(row: dict) -> dict:
    """A record's row as `kcore dump --json` prints it."""
    timestamp = -1 if row["timestamp"] is None else round(row["timestamp"].timestamp() * 1000)
    names = {0: "CreateTime", 1: "LogAppendTime", -1: "NoTimestampType"}
    return row | {"timestamp": timestamp, "timestampType": names[row["timestampType"]]}


def test_the_mark_of_lost_records_becomes_a_table(tmp_path):
    write_mark(str(tmp_path), 4)
    output = tmp_path / "mark.arrow"
    assert main(["dump", str(tmp_path / "lost-records"), "--format", "arrow", "-o", str(output)]) == 0
    (row,) = pa.ipc.open_file(output).read_all().to_pylist()
    assert row == {
        "file": str(tmp_path / "lost-records"),
        "version": 0,
        "firstLostOffset": 4,
        "meaning": meaning_of(4),
    }


@pytest.mark.parametrize("name", ["one.arrow", "one.arrows"])
def test_files_of_one_kind_go_to_one_file(name, tmp_path, capsys):
    output = tmp_path / name
    log = golden_data.partition_dir("g-zstd-0") / LOG
    assert main(["dump", str(log), "--format", "arrow", "-o", str(output), "--offsets", "5:9"]) == 0
    opened = (pa.ipc.open_stream if name.endswith("s") else pa.ipc.open_file)(output)
    table = opened.read_all()
    assert table["offset"].to_pylist() == [5, 6, 7, 8]
    assert table["file"].to_pylist() == [str(log)] * 4


def test_a_stream_goes_to_stdout(monkeypatch, capfdbinary):
    log = golden_data.partition_dir("g-none-0") / LOG
    assert main(["dump", str(log), "--format", "arrow", "-o", "-", "--no-records"]) == 0
    table = pa.ipc.open_stream(capfdbinary.readouterr().out).read_all()
    assert table["baseOffset"].to_pylist() == [
        batch["baseOffset"] for batch in golden_data.expected_file("g-none-0", LOG)["batches"]
    ]


@pytest.mark.parametrize("name", ["t.arrow", "t.parquet"])
def test_damage_goes_to_stderr_and_the_rest_into_the_table(name, tmp_path, capsys):
    log = tmp_path / LOG
    shutil.copy(golden_data.partition_dir("g-none-0") / LOG, log)
    content = bytearray(log.read_bytes())
    position = golden_data.expected_file("g-none-0", LOG)["batches"][3]["position"]
    content[position + 100] ^= 1
    log.write_bytes(content)
    output = tmp_path / name
    assert main(["dump", str(log), "--format", output.suffix[1:], "-o", str(output), "--no-records"]) == 1
    out, err = capsys.readouterr()
    assert not out
    assert err.startswith(f"{log}: offset ") and f"position {position}: " in err
    expected_rows = golden_data.expected_file("g-none-0", LOG)["batches"]
    assert read_table(output).num_rows == len(expected_rows) - 1


@pytest.mark.parametrize("options", [(), ("--no-records",)])
def test_a_wrong_base_offset_goes_to_stderr_and_every_batch_into_the_table(options, tmp_path, capsys):
    log, output = tmp_path / LOG, tmp_path / "t.arrow"
    golden = golden_data.expected_file("g-none-0", LOG)["batches"]
    content = bytearray((golden_data.partition_dir("g-none-0") / LOG).read_bytes())
    content[golden[3]["position"] + 4] ^= 1
    log.write_bytes(content)
    assert main(["dump", str(log), "--format", "arrow", "-o", str(output), *options]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    at = f"offset {golden[4]['baseOffset']}, position {golden[4]['position']}"
    assert line.startswith(f"{log}: {at}: base offset {golden[4]['baseOffset']} is not above ")
    table = pa.ipc.open_file(output).read_all()
    assert table.num_rows == (len(golden) if options else sum(batch["count"] for batch in golden))


@pytest.mark.parametrize("there", ["records.parquet", "index.parquet.partial"])
def test_a_parquet_file_that_is_there_stays_and_nothing_is_written(there, tmp_path, capsys):
    (tmp_path / there).write_text("mine")
    partition = str(golden_data.partition_dir("g-none-0"))
    assert main(["dump", partition, "--format", "parquet", "-o", str(tmp_path)]) == 2
    assert f"{tmp_path / there} is there already: nothing is written" in capsys.readouterr().err
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [(there, "mine")]


def test_a_parquet_file_of_many_records_has_several_row_groups(tmp_path, monkeypatch):
    monkeypatch.setattr(parquet_output, "_ROW_GROUP_BYTES", 1)
    output = tmp_path / "records.parquet"
    logs = [str(golden_data.partition_dir(name) / LOG) for name in ("g-zstd-0", "g-none-0")]
    assert main(["dump", *logs, "--format", "parquet", "-o", str(output), "--offsets", "5:9"]) == 0
    assert pq.read_metadata(output).num_row_groups == 2
    assert pq.read_table(output)["file"].to_pylist() == [logs[0]] * 4 + [logs[1]] * 4


@pytest.mark.parametrize("problem", [KeyboardInterrupt, OSError(28, "No space left on device")])
def test_a_dump_that_does_not_end_leaves_no_parquet_file(problem, tmp_path, monkeypatch):
    def ends(*_):
        assert [path.name for path in tmp_path.iterdir()] == ["records.parquet.partial"]
        raise problem

    monkeypatch.setattr(parquet_output, "sync_path", ends)
    log = str(golden_data.partition_dir("g-none-0") / LOG)
    assert main(["dump", log, "--format", "parquet", "-o", f"{tmp_path}/records.parquet"]) in (2, 130)
    assert list(tmp_path.iterdir()) == []


def test_parquet_goes_to_no_standard_output(capsys):
    assert main(["dump", str(golden_data.partition_dir("g-none-0") / LOG), "--format", "parquet", "-o", "-"]) == 2
    assert capsys.readouterr().err == (
        "kcore: -o -: Parquet is written to a file, not to stdout; name one (./- for a file called -)\n"
    )


@pytest.mark.parametrize("file_format", ["arrow", "parquet"])
@pytest.mark.parametrize(
    "arguments",
    [
        [str(golden_data.partition_dir("g-none-0") / LOG)],
        [str(golden_data.partition_dir("g-none-0")), "-o", "-"],
        [str(golden_data.partition_dir("g-none-0")), "-o", __file__],
    ],
)
def test_an_output_that_cannot_be_is_bad_usage(arguments, file_format, capsys):
    assert main(["dump", "--format", file_format, *arguments]) == 2
    assert "-o" in capsys.readouterr().err


def test_arrow_is_loaded_only_when_it_is_used(capsys):
    code = (
        "import sys; from kcore.tools.main import main;"
        f"main(['dump', {str(golden_data.partition_dir('g-none-0'))!r}]); print('pyarrow' in sys.modules)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=200)
    assert result.stdout.splitlines()[-1] == "False"


@pytest.mark.parametrize("source", ["g-none-0", f"g-none-0/{LOG}"])
def test_the_directory_in_which_the_output_is_made_must_be_there(source, tmp_path, capsys):
    output = tmp_path / "none" / "tables"
    assert main(["dump", str(golden_data.data_dir() / source), "--format", "arrow", "-o", str(output)]) == 2
    assert capsys.readouterr() == ("", f"kcore: -o {output}: there is no directory {output.parent}\n")
    assert list(tmp_path.iterdir()) == []


def test_a_name_that_ends_with_a_slash_is_a_directory_that_is_made_for_one_kind_of_file_too(tmp_path):
    log = golden_data.partition_dir("g-none-0") / LOG
    assert main(["dump", str(log), "--format", "arrow", "-o", f"{tmp_path}/tables/"]) == 0
    assert [path.name for path in (tmp_path / "tables").iterdir()] == ["records.arrow"]


@pytest.mark.parametrize("words", [[], ["--format", "text"], ["--json"]])
def test_a_place_for_arrow_is_refused_where_the_lines_go_to_stdout(words, tmp_path, capsys):
    log = golden_data.partition_dir("g-none-0") / LOG
    assert main(["dump", str(log), *words, "-o", str(tmp_path / "x")]) == 2
    assert capsys.readouterr() == (
        "",
        "kcore: -o goes with --format arrow and parquet: text and JSON lines go to stdout\n",
    )
