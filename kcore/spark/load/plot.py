"""Plots of a load's results: throughput against tasks, and the percentiles of latency."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from kcore.common.optional_packages import missing_package
from kcore.spark.load.latency_histogram import BUCKETS, bucket_bounds
from kcore.spark.options import OptionError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from kcore.spark.load.load_test import LoadRun

SUFFIXES = (".png", ".svg")
_TICKS = (0.0, 50.0, 90.0, 99.0, 99.9, 99.99, 99.999)


def check_plot(path: str | os.PathLike[str]) -> None:
    """Whether plot() can write this, so that no measurement is lost.  Raises OptionError for another suffix,
    FileNotFoundError for a directory that is not there, ImportError that says what to install."""
    path = os.fspath(path)
    if os.path.splitext(path)[1].lower() not in SUFFIXES:
        raise OptionError(f"--plot {path}: expected a name that ends with {' or '.join(SUFFIXES)}")
    directory = os.path.dirname(os.path.abspath(path))
    if not os.path.isdir(directory):
        raise FileNotFoundError(f"--plot {path}: there is no directory {directory}")
    try:
        import matplotlib as matplotlib
    except ImportError as error:
        raise missing_package("--plot", "plot", error) from None


def plot(runs: Sequence[LoadRun], path: str | os.PathLike[str]) -> None:
    """Write runs as PNG or SVG, by the suffix.  Raises OptionError, OSError, ImportError; ValueError without runs."""
    check_plot(path)
    if not runs:
        raise ValueError("there are no runs to plot")
    # Without pyplot: it would choose a window system and keep every figure.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.5), layout="constrained")
    FigureCanvasAgg(figure)
    throughput, latency = figure.subplots(1, 2)
    config = runs[0].rows[0]["config"]
    about = ", ".join(f"{name} {config[name]}" for name in ("record_size", "batch_size", "fetch_size", "codec")
                      if name in config)  # fmt: skip
    figure.suptitle(f"{runs[0].mode} on {runs[0].rows[0]['master']}" + (f" ({about})" if about else ""))
    _throughput(throughput, runs)
    _latency(latency, runs)
    figure.savefig(path, format=os.path.splitext(os.fspath(path))[1][1:].lower(), dpi=120)


def _throughput(axes: Axes, runs: Sequence[LoadRun]) -> None:
    """MB/s, beside it what as many times the fewest tasks would make, and at each point how much of a core a task had:
    more tasks only seem better than proportional where each had more of it.  Records on the right."""
    ordered = sorted(runs, key=lambda run: run.tasks)
    tasks = [run.tasks for run in ordered]
    rates = [run.rate("bytes") / 1e6 for run in ordered]
    axes.plot(tasks, rates, "o-", label="MB/s, and each task's share of a core")
    for run, rate in zip(ordered, rates, strict=True):
        axes.annotate(f"{run.cpu_share:.0%}", (run.tasks, rate), xytext=(4, -12), textcoords="offset points")
    if len(set(tasks)) > 1:
        axes.plot(tasks, [rates[0] * count / tasks[0] for count in tasks], ":", color="gray", label="in proportion")
        axes.legend()
    axes.set_xticks(sorted(set(tasks)))
    axes.set_xlabel("tasks")
    axes.set_ylabel("MB/s, all tasks together")
    axes.set_ylim(bottom=0)
    if all(rates):
        # The sizes of records hardly differ between runs: one factor makes the scale.
        factor = ordered[-1].rate("records") / rates[-1] / 1e6
        right = axes.secondary_yaxis(
            "right", functions=(lambda y: np.multiply(y, factor), lambda y: np.divide(y, factor))
        )
        right.set_ylabel("million records/s")
    axes.grid(alpha=0.3)
    axes.set_title("throughput")


def _latency(axes: Axes, runs: Sequence[LoadRun]) -> None:
    """Each further nine of the percentiles takes as much room as the one before."""
    middles_us = np.array([sum(bucket_bounds(bucket)) / 2 for bucket in range(BUCKETS)]) / 1000
    for run in runs:
        counts = run.latencies.counts
        used = np.flatnonzero(counts)
        if len(used):
            below = np.cumsum(counts)[used] - counts[used]
            # The last step goes on to the slowest operation.
            steps, heights = np.append(below, counts.sum() - 1), middles_us[np.append(used, used[-1])]
            axes.step(_nines(100 * steps / counts.sum()), heights, where="post", label=f"tasks: {run.tasks}")
    axes.set_xticks(_nines(np.array(_TICKS)), [f"{percent:g}" for percent in _TICKS])
    axes.set_yscale("log")
    axes.set_xlabel("percentile of operations")
    axes.set_ylabel("latency, µs")
    axes.grid(alpha=0.3)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(loc="lower right")
    axes.set_title("latency")


def _nines(percents: np.ndarray) -> np.ndarray:
    nines: np.ndarray = -np.log10(1 - percents / 100)
    return nines
