"""kcore dump against what Kafka's own tool printed of the same files."""

import itertools
import json
import os
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.ipc
import pytest

from kcore.log.log_config import LogConfig
from kcore.log.lost_records import meaning_of, write_mark
from kcore.log.open_log import open_log
from kcore.record.record_batch_builder import RecordBatchBuilder
from kcore.tools.main import main
from tests import golden_data
from tests.reference import record_batch as model
from tests.unit.tools.command import LOG, as_hex, flip, run_json


def dump(capsys, *arguments: str) -> tuple[int, list[dict]]:
    return run_json(capsys, "dump", *arguments)


def bare(event: dict) -> dict:
    return {key: value for key, value in event.items() if key not in ("type", "file")}


@pytest.mark.parametrize("partition", golden_data.partitions())
def test_a_directory_shows_what_kafkas_own_dump_shows(partition, capsys):
    directory = golden_data.partition_dir(partition)
    status, events = dump(capsys, directory)
    assert status == 0
    seen: dict[str, list[dict]] = {}
    for event in events:
        seen.setdefault(os.path.basename(event["file"]), []).append(event)
    assert set(seen) == {path.name for path in directory.iterdir()}
    for file, golden in golden_data.expected()["partitions"][partition]["files"].items():
        header, *rest = seen[file]
        assert header == {"type": "file", "file": str(directory / file), "kind": file[20:], "size": golden["size"]}
        if "entries" in golden:
            assert [bare(event) for event in rest] == golden_data.with_json_names(golden["entries"]), file
        else:
            assert_batches_equal(rest, golden["batches"])
    text = golden_data.expected()["partitions"][partition]["leader_epoch_checkpoint"]
    if isinstance(text, str):
        entries = [tuple(map(int, line.split())) for line in text.splitlines()[2:]]
        shown = [bare(event) for event in seen["leader-epoch-checkpoint"][1:]]
        assert [(entry["epoch"], entry["start_offset"]) for entry in shown] == entries


def assert_batches_equal(events: list[dict], golden: list[dict]) -> None:
    batches: list[dict] = []
    for event in events:
        event = bare(event) | {"kind": event["type"]}
        if event.pop("kind") == "batch":
            event[event.pop("timestamp_type")] = event.pop("max_timestamp")
            batches.append(event | {"records": []})
        else:
            event[event.pop("timestamp_type")] = event.pop("timestamp")
            for name in ("key", "value"):
                event.pop(name, None)
            event["header_keys"] = "[" + ",".join(name for name, _ in event.pop("headers", [])) + "]"
            batches[-1]["records"].append(event)
    assert batches == golden_data.with_json_names(golden)


@pytest.mark.parametrize("partition", [name for name in golden_data.partitions() if name.startswith("g-")])
def test_records_have_the_bytes_kafkas_consumer_got(partition, capsys):
    golden = golden_data.expected()["partitions"][partition]["consumer"]["read_uncommitted"]
    _, events = dump(capsys, golden_data.partition_dir(partition), "--offsets", f"{golden['beginning_offset']}:")
    records = [event for event in events if event["type"] == "record" and "end_txn_marker" not in event]
    shown = [
        [r["offset"], r["timestamp"], r["timestamp_type"], as_hex(r["key"]), as_hex(r["value"])]
        + [[[as_hex(name), as_hex(value)] for name, value in r["headers"]]]
        for r in records
    ]
    assert shown == [record[:6] for record in golden["records"]]


def test_a_data_directory_shows_its_checkpoints_and_every_partition(capsys):
    status, events = dump(capsys, golden_data.data_dir(), "--no-records")
    assert status == 0
    files = {os.path.relpath(event["file"], golden_data.data_dir()) for event in events}
    on_disk = {
        os.path.relpath(os.path.join(at, name), golden_data.data_dir())
        for at, _, names in os.walk(golden_data.data_dir())
        for name in names
    }
    assert on_disk - files == {"__cluster_metadata-0/quorum-state"}
    assert not [event for event in events if event["type"] == "record"]
    assert {"topic": "g-deleted", "partition": 0, "offset": 31} in [bare(event) for event in events]


@pytest.mark.parametrize(("option", "first", "end"), [("5:8", 5, 8), (":3", 0, 3), ("90:", 90, 96)])
def test_a_range_of_offsets_shows_just_those_records(option, first, end, capsys):
    _, events = dump(capsys, golden_data.partition_dir("g-zstd-0"), "--offsets", option)
    assert [event["offset"] for event in events if event["type"] == "record"] == list(range(first, end))
    for batch in (event for event in events if event["type"] == "batch"):
        assert batch["last_offset"] >= first
        assert batch["base_offset"] < end


def test_people_get_text_with_long_values_cut_short(capsys):
    assert main(["dump", str(golden_data.partition_dir("g-none-0"))]) == 0
    out, _ = capsys.readouterr()
    assert 'key "k", value "one header", headers h1="v1"' in out
    assert "... (3000 bytes)" in out
    assert "offset 13 position 3541" in out


def test_damage_is_shown_between_the_batches_before_and_after_it(tmp_path, capsys):
    log = tmp_path / "00000000000000000000.log"
    shutil.copy(golden_data.partition_dir("g-none-0") / log.name, log)
    golden = golden_data.expected_file("g-none-0", log.name)["batches"]
    data = bytearray(log.read_bytes())
    data[golden[3]["position"] + 100] ^= 1
    log.write_bytes(data)
    status, events = dump(capsys, log, "--no-records")
    assert status == 1
    shown = [event["base_offset"] if event["type"] == "batch" else event["type"] for event in events]
    expected = [batch["baseOffset"] for batch in golden]
    expected[3] = "damage"
    assert shown == ["file", *expected]
    damage = next(event for event in events if event["type"] == "damage")
    assert (damage["offset"], damage["position"]) == (golden[3]["baseOffset"], golden[3]["position"])


def test_a_wrong_length_hides_no_batch(tmp_path, capsys):
    log = tmp_path / "00000000000000000000.log"
    golden = golden_data.expected_file("g-none-0", log.name)["batches"]
    for byte in range(8, 12):
        data = bytearray((golden_data.partition_dir("g-none-0") / log.name).read_bytes())
        data[golden[3]["position"] + byte] ^= 0x40
        log.write_bytes(data)
        status, events = dump(capsys, log, "--no-records")
        assert status == 1
        assert [event["type"] for event in events].count("batch") == len(golden) - 1, f"byte {byte}"
        assert [event["position"] for event in events if event["type"] == "damage"] == [golden[3]["position"]]


def log_with_base_offset(directory: Path, n: int, offset: int, *, name: str = LOG) -> list[dict]:
    """A copy of a golden .log whose batch `n` has another base offset; the batches as they were."""
    golden = golden_data.expected_file("g-none-0", name)["batches"]
    data = bytearray((golden_data.partition_dir("g-none-0") / name).read_bytes())
    struct.pack_into(">q", data, golden[n]["position"], offset)
    (directory / name).write_bytes(data)
    return golden


@pytest.mark.parametrize(("wrong", "named"), [("raised", 4), ("lowered", 3)])
def test_a_base_offset_that_is_not_above_the_batch_before_is_damage_before_the_batch(wrong, named, tmp_path, capsys):
    golden = golden_data.expected_file("g-none-0", LOG)["batches"]
    offset = golden[3]["baseOffset"] + (1 << 20) if wrong == "raised" else golden[2]["lastOffset"]
    log_with_base_offset(tmp_path, 3, offset)
    status, events = dump(capsys, tmp_path / LOG, "--no-records")
    assert status == 1
    positions = [batch["position"] for batch in golden]
    assert [event["position"] for event in events[1:]] == sorted([*positions, positions[named]])
    (damage,) = [event for event in events if event["type"] == "damage"]
    assert events[1 + named] is damage
    size = golden[3]["lastOffset"] - golden[3]["baseOffset"]
    base = golden[4]["baseOffset"] if wrong == "raised" else offset
    before = offset + size if wrong == "raised" else offset
    assert damage["offset"] == base
    assert damage["problem"] == (
        f"base offset {base} is not above {before}, the last offset of the batch before it: one of the two is wrong; "
        f"`kcore verify {tmp_path}` says what the other files show"
    )
    assert main(["dump", str(tmp_path / LOG)]) == 1
    line = f"  DAMAGE offset {base}, position {positions[named]}: {damage['problem']}"
    assert line in capsys.readouterr().out.splitlines()


def test_a_base_offset_below_the_segments_name_is_damage_before_the_batch(tmp_path, capsys):
    golden = log_with_base_offset(tmp_path, 0, 48, name=f"{49:020}.log")
    status, events = dump(capsys, tmp_path, "--no-records")
    assert status == 1
    assert [event["type"] for event in events] == ["file", "damage"] + ["batch"] * len(golden)
    assert events[1]["problem"].startswith("base offset 48 is below 49, the segment's name; `kcore verify ")
    assert main(["verify", str(tmp_path), "--quiet"]) == 1


def test_a_wrong_base_offset_beyond_max_bytes_is_not_shown(tmp_path, capsys):
    golden = log_with_base_offset(tmp_path, 3, 1 << 20)
    status, events = dump(capsys, tmp_path / LOG, "--no-records", "--max-bytes", golden[4]["position"])
    assert (status, [event["type"] for event in events]) == (0, ["file"] + ["batch"] * 4)


def test_no_command_is_named_for_a_wrong_base_offset_of_a_file_that_verify_does_not_compare(tmp_path, capsys):
    log_with_base_offset(tmp_path, 3, 1 << 20)
    for name in (f"{LOG}.deleted", "copy.log"):
        (tmp_path / LOG).rename(tmp_path / name)
        status, events = dump(capsys, tmp_path / name, "--no-records")
        (tmp_path / name).rename(tmp_path / LOG)
        (damage,) = [event for event in events if event["type"] == "damage"]
        assert status == 1 and damage["problem"].endswith("one of the two is wrong")


@pytest.mark.parametrize("cut", [1, 11, 12, 60, 61, 100])
def test_a_file_that_ends_inside_a_batch_shows_all_batches_before_it(tmp_path, capsys, cut):
    log = tmp_path / "00000000000000000000.log"
    golden = golden_data.expected_file("g-none-0", log.name)["batches"]
    data = (golden_data.partition_dir("g-none-0") / log.name).read_bytes()
    log.write_bytes(data[: golden[-1]["position"] + cut])
    status, events = dump(capsys, log, "--no-records")
    assert status == 1
    assert [event["type"] for event in events] == ["file"] + ["batch"] * (len(golden) - 1) + ["damage"]
    assert events[-1]["position"] == golden[-1]["position"]


def test_a_batch_larger_than_the_read_buffer_is_shown(tmp_path, capsys):
    big = model.encode_batch(model.make_batch([model.Record(0, 1, b"k", bytes(3 << 20))]))
    small = model.encode_batch(model.make_batch([model.Record(1, 1, b"k", b"v")]))
    (tmp_path / "00000000000000000000.log").write_bytes(big + small)
    status, events = dump(capsys, tmp_path, "--no-records")
    assert status == 0
    assert [(e["base_offset"], e["size"]) for e in events if e["type"] == "batch"] == [(0, len(big)), (1, len(small))]


def test_records_that_cannot_be_parsed_under_a_right_crc_are_damage(tmp_path, capsys):
    one = model.encode_batch(model.make_batch([model.Record(0, 1, b"k", b"v")]))
    lying = model.reseal(one[:57] + struct.pack(">i", 2) + one[61:])
    (tmp_path / "00000000000000000000.log").write_bytes(lying)
    status, events = dump(capsys, tmp_path)
    assert status == 1
    assert events[-1]["type"] == "damage"
    assert (events[-1]["offset"], events[-1]["position"]) == (0, 0)


def test_entries_that_descend_and_left_over_bytes_are_damage(tmp_path, capsys):
    index = tmp_path / "00000000000000000010.index"
    index.write_bytes(struct.pack(">iiii", 5, 100, 4, 200) + b"xyz")
    status, events = dump(capsys, index)
    assert status == 1
    assert [event["type"] for event in events] == ["file", "entry", "damage", "entry", "damage"]
    assert [bare(event) for event in events if event["type"] == "entry"] == [
        {"offset": 15, "position": 100},
        {"offset": 14, "position": 200},
    ]


def test_the_room_of_an_index_in_use_is_not_shown_as_entries(tmp_path, capsys):
    index = tmp_path / "00000000000000000010.index"
    index.write_bytes(struct.pack(">ii", 256, 65536) + bytes(800))
    assert [bare(event) for event in dump(capsys, index)[1][1:]] == [{"offset": 266, "position": 65536}]


def test_the_mark_of_lost_records_is_shown_with_what_it_means(tmp_path, capsys):
    write_mark(str(tmp_path), 4)
    (entry,) = [bare(event) for event in dump(capsys, tmp_path / "lost-records")[1][1:]]
    assert entry == {"version": 0, "first_lost_offset": 4, "meaning": meaning_of(4)}
    assert main(["dump", str(tmp_path / "lost-records")]) == 0
    assert "firstLostOffset 4 meaning this replica lacks records from offset 4 on" in capsys.readouterr().out


def test_garbage_in_a_small_file_is_damage(tmp_path, capsys):
    for name in (
        "00000000000000000000.snapshot",
        "00000000000000000000.txnindex",
        "leader-epoch-checkpoint",
        "recovery-point-offset-checkpoint",
        "partition.metadata",
        "lost-records",
        "meta.properties",
    ):
        (tmp_path / name).write_bytes(b"\xff\x00garbage")
        status, events = dump(capsys, tmp_path / name)
        assert status == 1, name
        assert events[-1]["type"] == "damage", name


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_a_header_name_that_is_not_utf8_and_a_narrow_terminal_stop_neither_form(tmp_path, encoding):
    record = model.Record(0, 1, "k😀".encode(), "你".encode(), [(b"\xff\xfe", b"v")])
    (tmp_path / "00000000000000000000.log").write_bytes(model.encode_batch(model.make_batch([record])))
    for options in ([], ["--json"]):
        result = subprocess.run(
            [sys.executable, "-m", "kcore.tools.main", "dump", *options, str(tmp_path)],
            cwd=Path(__file__).resolve().parents[3],
            env=os.environ | {"PYTHONIOENCODING": encoding},
            capture_output=True,
            timeout=60,
        )
        assert (result.returncode, result.stderr) == (0, b"")
        if options:
            event = json.loads(result.stdout.splitlines()[-1])
            assert (event["key"], event["value"], len(event["headers"])) == ("k😀", "你", 1)


@pytest.mark.parametrize("partition", ["__transaction_state-0", "__transaction_state-1", "__transaction_state-2"])
def test_transaction_state_is_put_in_the_words_of_kafkas_own_tool(partition, capsys):
    golden = json.loads((golden_data.golden_file("transaction-state/expected.json")).read_text())
    status, events = dump(capsys, golden_data.partition_dir(partition) / LOG, "--transaction-log-decoder")
    assert status == 0
    shown = [(e["offset"], e["key"], e["value"]) for e in events if e["type"] == "record"]
    assert shown == [(e["offset"], e["key"], e["payload"]) for e in golden["partitions"][partition]]


@pytest.mark.parametrize("partition", ["1", "2"])
def test_committed_offsets_are_put_in_the_words_of_kafkas_own_tool(partition, capsys, tmp_path):
    golden = json.loads((golden_data.golden_file("consumer-offsets/expected.json")).read_text())["partitions"][
        partition
    ]
    log = shutil.copy(golden_data.golden_file(f"consumer-offsets/{partition}.log"), tmp_path / LOG)
    status, events = dump(capsys, log, "--offsets-decoder")
    assert status == 0
    shown = [e for e in events if e["type"] == "record" and "key" in e]
    assert [(e["offset"], e["key"]["type"]) for e in shown] == [(e["offset"], e["key"]["type"]) for e in golden]
    for event, expected in zip(shown, golden, strict=True):
        if int(event["key"]["type"]) > 2:  # of the newer group protocol: its bytes are shown
            assert set(event["key"]["data"]) == {"hex"}
            continue
        assert event["key"] == expected["key"]
        # A newer field, and two that Kafka's tool decodes further.
        wanted = expected["payload"]
        if wanted is not None:
            wanted["data"].pop("topicId", None)
            for member in [*event["value"]["data"].get("members", ()), *wanted["data"].get("members", ())]:
                member.pop("subscription")
                member.pop("assignment")
        assert event["value"] == wanted


def test_a_record_that_its_decoder_cannot_read_is_shown_as_it_is_beside_the_damage(tmp_path, capsys):
    record = model.Record(0, 1, b"\x00\x01\x7f\xff", b"v")
    (tmp_path / LOG).write_bytes(model.encode_batch(model.make_batch([record])))
    status, events = dump(capsys, tmp_path / LOG, "--offsets-decoder")
    assert status == 1
    assert [event["type"] for event in events] == ["file", "batch", "record", "damage"]
    assert events[2]["key"] == {"hex": "00017fff"}
    assert events[3]["offset"] == 0


def test_only_the_first_bytes_of_each_log_are_shown_with_max_bytes(capsys):
    path = golden_data.partition_dir("g-none-0") / LOG
    golden = golden_data.expected_file("g-none-0", LOG)["batches"]
    limit = golden[3]["position"]
    _, events = dump(capsys, path, "--no-records", "--max-bytes", limit)
    assert [event["position"] for event in events[1:]] == [batch["position"] for batch in golden[:3]]


def test_records_without_their_bytes(capsys):
    _, events = dump(capsys, golden_data.partition_dir("g-none-0") / LOG, "--no-values", "--start", "2", "--end", "4")
    records = [event for event in events if event["type"] == "record"]
    assert [record["offset"] for record in records] == [2, 3]
    assert not any(name in record for record in records for name in ("key", "value", "headers"))


@pytest.mark.parametrize("mark", [".deleted", ".swap", ".cleaned"])
def test_files_that_a_cleaning_or_deletion_left_are_shown_with_their_mark(mark, tmp_path, capsys):
    source = golden_data.partition_dir("g-none-0")
    for path in source.glob(f"{0:020}.*"):
        shutil.copy(path, tmp_path / f"{path.name}{mark}")
    shutil.copy(source / "leader-epoch-checkpoint", tmp_path)
    shutil.copy(source / "partition.metadata", tmp_path)
    status, events = dump(capsys, tmp_path)
    assert status == 0
    files = [event for event in events if event["type"] == "file"]
    assert sorted(event.get("mark", "") for event in files) == ["", "", mark, mark, mark]
    shown = [event["base_offset"] for event in events if event["type"] == "batch"]
    assert shown == [batch["baseOffset"] for batch in golden_data.expected_file("g-none-0", LOG)["batches"]]
    (log,) = tmp_path.glob(f"*.log{mark}")
    assert dump(capsys, log, "--no-records")[1][1]["type"] == "batch"


@pytest.mark.parametrize(("content", "status"), [(b'{"version":0,"brokerEpoch":7}', 0), (b"", 0), (b"{", 1)])
def test_the_marker_of_a_clean_stop_has_the_broker_epoch(content, status, tmp_path, capsys):
    marker = tmp_path / ".kafka_cleanshutdown"
    marker.write_bytes(content)
    exit_status, events = dump(capsys, marker)
    assert exit_status == status
    entries = [bare(event) for event in events if event["type"] == "entry"]
    assert entries == ([{"version": 0, "broker_epoch": 7}] if len(content) > 1 else [])


def test_a_file_that_cannot_be_read_is_damage_and_the_rest_is_shown(tmp_path, capsys):
    directory = tmp_path / "t-0"
    shutil.copytree(golden_data.partition_dir("g-none-0"), directory)
    (directory / f"{49:020}.index").unlink()
    (directory / f"{49:020}.index").symlink_to("nowhere")
    status, events = dump(capsys, directory, "--no-records")
    assert status == 1
    (damage,) = [event for event in events if event["type"] == "damage"]
    assert (damage["file"], damage["problem"]) == (
        str(directory / f"{49:020}.index"),
        "cannot be read: No such file or directory",
    )
    assert events[-1]["file"].endswith("partition.metadata")


@pytest.fixture
def keyed(tmp_path):
    """Two segments; a record each second, with three keys and every tenth with none."""
    with open_log(tmp_path / "t-0", "a", config=LogConfig(segment_bytes=700)) as log:
        for first in range(0, 60, 5):
            builder = RecordBatchBuilder(compression="lz4" if first % 2 else "none")
            for n in range(first, first + 5):
                builder.append(
                    b"v%d" % n, None if n % 10 == 9 else b"k%d" % (n % 3), timestamp=1_700_000_000_000 + n * 1000
                )
            log.append_as_leader(builder.build())
    return tmp_path / "t-0"


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        (("--key", "k1"), lambda n: n % 3 == 1 and n % 10 != 9),
        (("--from", "@1700000050000"), lambda n: n >= 50),
        (("--until", "2023-11-14T22:13:23"), lambda n: n < 3),
        (
            ("--from", "@1700000004000", "--until", "@1700000041000", "--key", "k2"),
            lambda n: 4 <= n <= 40 and n % 3 == 2 and n % 10 != 9,
        ),
        (("--key", "k1", "--offsets", "30:"), lambda n: n >= 30 and n % 3 == 1 and n % 10 != 9),
        (("--key", "nobody"), lambda n: False),
    ],
)
def test_records_are_chosen_by_key_and_time(keyed, options, wanted, tmp_path, capsys):
    expected = [f"v{n}" for n in range(60) if wanted(n)]
    status, events = dump(capsys, keyed, *options)
    assert status == 0
    assert [event["value"] for event in events if event["type"] == "record"] == expected
    # Nothing is shown of a batch or file without such a record, and of other files.
    assert {event["type"] for event in events} == ({"file", "batch", "record"} if expected else set())
    for before, event in itertools.pairwise(events):
        assert before["type"] == "record" or event["type"] != "file"
        assert before["type"] != "batch" or event["type"] == "record"
    _, batches = dump(capsys, keyed, *options, "--no-records")
    assert batches == [event for event in events if event["type"] != "record"]
    assert main(["dump", str(keyed), *options, "--format", "arrow", "-o", str(tmp_path / "t.arrow")]) == 0
    assert pa.ipc.open_file(tmp_path / "t.arrow").read_all()["value"].to_pylist() == [
        value.encode() for value in expected
    ]


def test_damage_is_shown_beside_the_records_that_are_chosen(keyed, capsys):
    flip(keyed / LOG, 70)
    status, events = dump(capsys, keyed, "--key", "nobody")
    assert status == 1 and [event["type"] for event in events] == ["file", "damage"]


def test_a_time_that_cannot_be_read_is_bad_usage(keyed, capsys):
    assert main(["dump", str(keyed), "--from", "yesterday"]) == 2
    assert "'yesterday': expected -1h" in capsys.readouterr().err
