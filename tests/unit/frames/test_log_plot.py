"""plot_log(): what its curves say, and that it draws them."""

import pathlib
import random
import re
import sys

import pytest

import kcore
from kcore.log.log_config import LogConfig
from tests.unit.log.logs import Logs, batch

np = pytest.importorskip("numpy")
pytest.importorskip("matplotlib")

from kcore.frames.log_plot import log_curves, plot_log  # noqa: E402


def test_the_curves_are_sums_over_the_batches_headers(tmp_path):
    with kcore.open_log(tmp_path / "t-0", "a", config=LogConfig(segment_bytes=3000)) as log:
        for n in range(100):
            log.append_as_leader(batch(10, timestamp=1_700_000_000_000 + 1000 * n))
        curves = log_curves(log, bins=50)
        assert curves.offsets.tolist() == list(range(0, 1000, 20)) and curves.damage == []
        assert curves.megabytes[-1] == log.size / 1e6 and curves.megabytes[0] == log.size / 1e6 / 50
        assert set(curves.batch_records) == {10.0} and not curves.missing.any()
        assert curves.seconds.tolist() == [1_700_000_001 + 2 * n for n in range(50)]


@pytest.mark.parametrize("seed", range(10))
def test_gaps_are_the_offsets_without_a_record_whatever_the_bins(tmp_path, seed):
    rng = random.Random(seed)
    offset, held = 0, 0
    log = Logs(tmp_path / "t-0").open()
    for _ in range(rng.randint(1, 40)):
        offset += rng.choice([0, 0, rng.randint(1, 50)])
        count = rng.randint(1, 30)
        log.append_as_follower(_at(batch(count), offset))
        offset, held = offset + count, held + count
    curves = log_curves(log, bins=rng.choice([1, 7, 400]))
    missing = log.log_end_offset - log.log_start_offset - held
    assert abs(curves.missing.sum() - missing) <= len(curves.missing) / 2, f"{seed=}"


def _at(records, offset):
    from kcore.record.memory_records import MemoryRecords

    placed = bytearray(records)
    placed[0:8] = offset.to_bytes(8, "big")
    return MemoryRecords(placed)


def test_a_plot_is_a_png_for_a_notebook_and_a_file_for_others(tmp_path):
    with kcore.open_log(tmp_path / "t-0", "a", config=LogConfig(segment_bytes=1000)) as log:
        for _ in range(20):
            log.append_as_leader(batch(10))
        shown = plot_log(log)
        assert shown._repr_png_().startswith(b"\x89PNG")
        assert repr(shown) == "LogPlot('t-0: offsets 0 to 200'); save(PATH) writes it"
        assert [axes.get_title() for axes in shown.figure.axes][1:] == ["records of a batch", "gaps", "time"]
        assert len(shown.figure.axes[0].lines) == len(log.segments)  # the curve, and a line for each further segment
        shown.save(tmp_path / "log.svg")
        assert b"<svg" in (tmp_path / "log.svg").read_bytes()


def test_an_empty_log_is_plotted(tmp_path):
    with kcore.open_log(tmp_path / "t-0", "a") as log:
        assert plot_log(log)._repr_png_().startswith(b"\x89PNG")


def test_damage_stands_in_the_title(tmp_path):
    with kcore.open_log(tmp_path / "t-0", "a") as log:
        log.append_as_leader(batch(10))
        end = log.size
    with open(tmp_path / "t-0" / f"{0:020}.log", "ab") as file:
        file.write(b"\x01" * 100)
    with kcore.open_log(tmp_path / "t-0") as log:
        assert f"00000.log position {end}: " in plot_log(log).figure.get_suptitle()


def test_without_matplotlib_the_error_names_it(tmp_path, monkeypatch):
    with kcore.open_log(tmp_path / "t-0", "a") as log:
        monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
        with pytest.raises(ImportError, match=r"plot_log\(\).*kcore\[plot\]"):
            plot_log(log)


@pytest.mark.parametrize("other", ["orders", pathlib.Path("data/orders-0")])
def test_a_name_or_a_path_in_the_place_of_a_log_says_how_to_open_it(other):
    says = f"log must be an opened log, not {other!r}: with kcore.open_log(PATH) as log: kcore.plot_log(log)"
    with pytest.raises(TypeError, match=f"^{re.escape(says)}$"):
        plot_log(other)
    with pytest.raises(TypeError, match=r"^log must be an opened log, not 5$"):
        plot_log(5)
