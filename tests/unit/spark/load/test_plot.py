import struct
import sys
import xml.etree.ElementTree as ElementTree
import zlib

import pytest

from kcore.spark.load.latency_histogram import LatencyHistogram
from kcore.spark.load.load_test import LoadRun
from kcore.spark.load.plot import check_plot, plot
from kcore.spark.options import OptionError

SECOND = 1_000_000_000


def run_of(tasks, records=1000):
    rows = []
    for task in range(tasks):
        histogram = LatencyHistogram()
        for n in range(records):
            histogram.record(10_000 + 37 * n * (task + 1))
        rows.append(
            {
                "run_id": f"run-{tasks}",
                "task": task,
                "mode": "append",
                "host": "worker",
                "start_ns": 5 * SECOND,
                "stop_ns": 7 * SECOND,
                "cpu_s": 1.0 / tasks,
                "window_start_ns": 5 * SECOND,
                "window_stop_ns": 7 * SECOND,
                "operations": records,
                "records": records,
                "bytes": 110 * records,
                "latency_counts": histogram.counts.tolist(),
                "config": {"mode": "append", "record_size": "100", "seconds": "2"},
                "master": "local[4]",
            }
        )
    return LoadRun(tuple(rows), "driver")


SWEEP = [run_of(1), run_of(2), run_of(4)]


def chunks(data):
    """The chunks of a PNG, their checksums checked."""
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    at = 8
    while at < len(data):
        (length,) = struct.unpack_from(">I", data, at)
        kind, body = data[at + 4 : at + 8], data[at + 8 : at + 8 + length]
        (crc,) = struct.unpack_from(">I", data, at + 8 + length)
        assert zlib.crc32(kind + body) == crc
        yield kind, body
        at += 12 + length


@pytest.mark.parametrize("runs", [SWEEP, SWEEP[:1], [run_of(2, 0)]], ids=["sweep", "one run", "nothing recorded"])
def test_a_png_is_one_with_something_on_it(tmp_path, runs):
    plot(runs, tmp_path / "load.png")
    png_chunks = list(chunks((tmp_path / "load.png").read_bytes()))
    assert png_chunks[0][0] == b"IHDR" and png_chunks[-1][0] == b"IEND"
    width, height = struct.unpack_from(">II", png_chunks[0][1])
    assert width > height > 400
    pixels = zlib.decompress(b"".join(body for kind, body in png_chunks if kind == b"IDAT"))
    assert len(set(pixels)) > 50


def test_an_svg_shows_both_plots_and_a_curve_for_each_number_of_tasks(tmp_path):
    plot(SWEEP, tmp_path / "load.SVG")
    text = (tmp_path / "load.SVG").read_text()
    assert ElementTree.fromstring(text).tag == "{http://www.w3.org/2000/svg}svg"
    for words in ("throughput", "latency", "tasks: 1", "tasks: 4", "append on local[4]", "99.9", "50%", "25%", "12%"):
        assert words in text  # as comments beside the glyphs


@pytest.mark.parametrize("name", ["load.pdf", "load", "png"])
def test_another_suffix_is_refused_before_anything_is_measured(tmp_path, name):
    with pytest.raises(OptionError, match=r"\.png or \.svg"):
        check_plot(tmp_path / name)


def test_a_missing_directory_is_reported_before_anything_is_measured(tmp_path):
    with pytest.raises(FileNotFoundError, match="missing"):
        check_plot(tmp_path / "missing" / "load.png")


def test_without_matplotlib_the_error_names_it(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ImportError, match=r"kcore\[plot\]"):
        check_plot(tmp_path / "load.png")


def test_nothing_cannot_be_plotted(tmp_path):
    with pytest.raises(ValueError, match="no runs"):
        plot([], tmp_path / "load.png")
