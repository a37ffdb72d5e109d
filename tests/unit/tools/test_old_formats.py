"""The tools on messages of magic 0 and 1, as Kafka 0.8 to 0.10 left them."""

import json
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.ipc
import pytest

from kcore.tools.main import main
from tests import golden_data
from tests.unit.tools.command import LOG, as_hex, run_json

EXPECTED = json.loads(golden_data.golden_file("old-formats/expected.json").read_text())["files"]


@pytest.fixture(params=sorted(EXPECTED))
def old(request, tmp_path) -> tuple[Path, list[dict]]:
    """A partition directory with one of the files, and the content that Kafka read from it."""
    directory = tmp_path / "t-0"
    directory.mkdir()
    shutil.copy(golden_data.golden_file(f"old-formats/{request.param}"), directory / LOG)
    return directory, EXPECTED[request.param]["batches"]


def test_dump_shows_the_same_as_kafka(old, capsys):
    directory, golden = old
    status, events = run_json(capsys, "dump", directory)
    assert status == 0
    batches = [event for event in events if event["type"] == "batch"]
    names = {
        "position": "position",
        "last_offset": "lastOffset",
        "magic": "magic",
        "size": "size",
        "compress_codec": "codec",
        "timestamp_type": "timestampType",
        "max_timestamp": "maxTimestamp",
        "crc": "crc",
    }
    for event, batch in zip(batches, golden, strict=True):
        assert {name: event[name] for name in names} == {name: batch[kafka] for name, kafka in names.items()}
    records = [event for event in events if event["type"] == "record"]
    shown = [[r["offset"], r["timestamp"], as_hex(r["key"]), as_hex(r["value"])] for r in records]
    assert shown == [record[:4] for batch in golden for record in batch["records"]]


def test_arrow_has_the_same_records(old, tmp_path, capsys):
    directory, golden = old
    assert main(["dump", str(directory / LOG), "--format", "arrow", "-o", str(tmp_path / "r.arrow")]) == 0
    table = pa.ipc.open_file(tmp_path / "r.arrow").read_all()
    rows = zip(*(table[name].to_pylist() for name in ("offset", "key", "value")), strict=True)
    shown = [[offset, *(None if data is None else data.hex() for data in pair)] for offset, *pair in rows]
    assert shown == [[r[0], r[2], r[3]] for batch in golden for r in batch["records"]]


#: The golden files go from offset 24 to 30, as if compaction had taken what was between.
@pytest.mark.parametrize("options", [["--compacted"], ["--compacted", "--no-records"]])
def test_verify_finds_no_damage_and_every_flipped_byte_under_a_crc(options, old, capsys):
    directory, golden = old
    assert run_json(capsys, "verify", directory, *options)[0] == 0
    original = (directory / LOG).read_bytes()
    for batch in golden[:: max(len(golden) // 6, 1)]:
        for at in range(batch["position"] + 8, batch["position"] + batch["size"], 7):
            if batch["magic"] == 2 and at - batch["position"] < 16:
                continue  # its leader epoch is under no CRC
            content = bytearray(original)
            content[at] ^= 0x20
            (directory / LOG).write_bytes(content)
            status, problems = run_json(capsys, "verify", directory, *options)
            assert status == 1, f"byte {at}"
            assert batch["position"] in [p.get("position") for p in problems], f"byte {at}: {problems}"


@pytest.mark.parametrize("salvage", ["truncate", "keep-after"])
def test_repair_keeps_what_is_sound(salvage, old, tmp_path, capsys):
    directory, golden = old
    victim = golden[len(golden) // 2]
    content = bytearray((directory / LOG).read_bytes())
    content[victim["position"] + victim["size"] - 1] ^= 1
    (directory / LOG).write_bytes(content)
    out = tmp_path / "out" / "t-0"
    out.parent.mkdir()
    status, _ = run_json(capsys, "repair", directory, "--apply", "--salvage", salvage, "--output", out, "--compacted")
    assert status == 0
    _, events = run_json(capsys, "dump", out)
    left = [event["offset"] for event in events if event["type"] == "record"]
    kept = golden[: len(golden) // 2] + (golden[len(golden) // 2 + 1 :] if salvage == "keep-after" else [])
    assert left == [record[0] for batch in kept for record in batch["records"]]


def test_a_replica_of_it_does_not_differ_and_one_without_a_message_has_a_gap(old, tmp_path, capsys):
    directory, golden = old
    other = Path(shutil.copytree(directory, tmp_path / "other" / "t-0"))
    assert run_json(capsys, "diff", directory, other)[0] == 0
    first, second = golden[0], golden[1]
    content = (other / LOG).read_bytes()
    if len(golden) > 2:
        (other / LOG).write_bytes(content[: first["size"]] + content[second["position"] + second["size"] :])
        for options, expected in (((), 1), (("--gaps-are-cleaning",), 0)):
            status, events = run_json(capsys, "diff", directory, other, *options)
            assert (status, sum(gap["records"] for gap in events[0]["gaps"])) == (expected, len(second["records"]))


def test_indexes_come_back(old, capsys):
    directory, _ = old
    assert run_json(capsys, "reindex", directory)[0] == 0
    assert run_json(capsys, "reindex", "--check", directory)[0] == 0
    assert main(["verify", str(directory), "--compacted"]) == 0
