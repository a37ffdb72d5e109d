"""plot_log: a log as four plots over its offsets: bytes, records of a batch, gaps, timestamps."""

from __future__ import annotations

import io
import os
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from kcore.common.optional_packages import missing_package
from kcore.common.text import bytes_of, counted
from kcore.log.unified_log import UnifiedLog

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: Points of a curve.  Each stands for as many offsets.
_BINS = 400


class LogPlot:
    """A figure of matplotlib that a notebook shows.  figure: to change it."""

    def __init__(self, figure: Figure, what: str) -> None:
        self.figure = figure
        self._what = what

    def __repr__(self) -> str:
        return f"LogPlot({self._what!r}); save(PATH) writes it"

    def save(self, path: str | os.PathLike[str]) -> None:
        """As PNG, SVG or PDF, by the suffix.  Raises OSError, ValueError for another suffix."""
        self.figure.savefig(path)

    def _repr_png_(self) -> bytes:
        data = io.BytesIO()
        self.figure.savefig(data, format="png")
        return data.getvalue()


class LogCurves(NamedTuple):
    """By bins of offsets: arrays of the same length, float64 but for the offsets; NaN for a bin without batches.

    offsets: the first of each bin.  megabytes: of the files up to the bin's end.  batch_records: records of a batch, on
    average.  missing: offsets without a record.  seconds: the latest timestamp, since 1970.
    """

    offsets: np.ndarray
    megabytes: np.ndarray
    batch_records: np.ndarray
    missing: np.ndarray
    seconds: np.ndarray
    #: Where a segment cannot be read to its end: its file, the position in bytes, and why.
    damage: list[str]


def plot_log(log: UnifiedLog) -> LogPlot:
    """Plot a log that open_log() has opened, or a broker's: only the headers of its batches are read.

    Raises TypeError for anything else, ImportError without matplotlib, OSError.
    """
    if not isinstance(log, UnifiedLog):
        is_name = isinstance(log, str | os.PathLike)
        instead = ": with kcore.open_log(PATH) as log: kcore.plot_log(log)" if is_name else ""
        raise TypeError(f"log must be an opened log, not {log!r}{instead}")
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise missing_package("plot_log()", "plot", error) from None
    curves = log_curves(log)
    # Without pyplot: it would choose a window system and keep every figure.
    figure = Figure(figsize=(11, 6.5), layout="constrained")
    FigureCanvasAgg(figure)
    what = f"{log.topic_partition}: offsets {log.log_start_offset:,} to {log.log_end_offset:,}"
    title = f"{what}, {bytes_of(log.size)} in {counted(len(log.segments), 'segment')}"
    figure.suptitle("\n".join([title, *curves.damage[:3]]))
    (top_left, top_right), (bottom_left, bottom_right) = figure.subplots(2, 2, sharex=True)
    _line(top_left, curves.offsets, curves.megabytes, "bytes, and where segments begin", "MB up to here")
    for segment in list(log.segments)[1:]:
        top_left.axvline(segment.base_offset, color="gray", linewidth=0.5)
    _line(top_right, curves.offsets, curves.batch_records, "records of a batch", "records, on average")
    _line(bottom_left, curves.offsets, curves.missing, "gaps", "offsets without a record")
    times = (1000 * curves.seconds).astype("datetime64[ms]")
    _line(bottom_right, curves.offsets, times, "time", "latest timestamp, UTC")
    for axes in (bottom_left, bottom_right):
        axes.set_xlabel("offset")
    for axes in (top_left, top_right, bottom_left):
        axes.set_ylim(bottom=0)
    return LogPlot(figure, what)


def log_curves(log: UnifiedLog, bins: int = _BINS) -> LogCurves:
    """What plot_log() shows.  Raises OSError."""
    start, end = log.log_start_offset, log.log_end_offset
    edges = np.unique(np.linspace(start, max(end, start + 1), bins + 1).astype(np.int64))
    count = len(edges) - 1
    sizes, batches, records = np.zeros((3, count))
    covered = np.zeros(count)
    latest = np.full(count, -1, np.int64)
    damage = []

    def add(table: np.ndarray) -> None:
        nonlocal covered
        table = table[(table["last_offset"] >= start) & (table["base_offset"] < end)]
        places = np.clip(np.searchsorted(edges, table["base_offset"], side="right") - 1, 0, count - 1)
        span = table["last_offset"] - table["base_offset"] + 1
        # A wrapper message of the old formats does not say how many records it has.
        held = np.where(table["count"] < 0, span, table["count"])
        for curve, values in ((sizes, table["size"]), (batches, None), (records, held)):
            curve += np.bincount(places, values, minlength=count)
        np.maximum.at(latest, places, table["max_timestamp"])
        # The records of a batch that reaches over several bins are spread evenly.
        wide = (table["last_offset"] >= edges[places + 1]) | (table["base_offset"] < start)
        covered += np.bincount(places[~wide], weights=held[~wide], minlength=count)
        for first, last, number in zip(table["base_offset"][wide], table["last_offset"][wide], held[wide], strict=True):
            _spread(covered, edges, int(first), int(last) + 1, float(number))

    for segment in log.segments:
        result = segment.scan(lambda table: add(table.to_numpy()), check_crc=False)
        if result.truncated_bytes:
            damage.append(f"{segment.log_path} position {result.valid_bytes}: {result.reason}")
    empty = batches == 0
    return LogCurves(
        edges[:-1],
        np.cumsum(sizes) / 1e6,
        np.where(empty, np.nan, records / np.maximum(batches, 1)),
        np.maximum(np.rint(np.diff(edges) - covered), 0) if end > start else np.zeros(count),
        np.where(latest < 0, np.nan, latest / 1000),
        damage,
    )


def _spread(curve: np.ndarray, edges: np.ndarray, first: int, end: int, number: float) -> None:
    """Add number to the bins of [first, end), to each as much as it has of the offsets."""
    first, end = max(first, int(edges[0])), min(end, int(edges[-1]))
    if first >= end:
        return
    low, high = np.searchsorted(edges, [first, end - 1], side="right") - 1
    if low == high:
        curve[low] += number
        return
    parts = np.diff(np.concatenate(([first], edges[low + 1 : high + 1], [end])))
    curve[low : high + 1] += number * parts / (end - first)


def _line(axes: Axes, offsets: np.ndarray, values: np.ndarray, title: str, label: str) -> None:
    axes.plot(offsets, values, ".-", linewidth=1, markersize=2)
    axes.set_title(title)
    axes.set_ylabel(label)
    axes.grid(alpha=0.3)
