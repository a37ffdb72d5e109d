"""What the comparisons of bench/peers have in common: rounds of two sides, their ratio, the table."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

VERDICTS = {True: "met", False: "MISSED", None: "not measured"}


def ratio(ours: Sequence[float], rivals: Sequence[float]) -> float:
    """How many times as fast we are: the median over pairs of neighbouring rounds, which met the same machine."""
    return statistics.median(b / a for a, b in zip(ours, rivals, strict=True))


def spread(rounds: Sequence[float]) -> str:
    """The interquartile range over the median."""
    median = statistics.median(rounds)
    quartiles = statistics.quantiles(rounds, n=4, method="inclusive") if len(rounds) > 1 else [median] * 3
    return f"{(quartiles[2] - quartiles[0]) / median:.0%}"


def table(headings: list[str], lines: list[list[str]]) -> str:
    widths = [max(len(line[n]) for line in [headings, *lines]) for n in range(len(headings))]
    head, *shown = (
        "| " + " | ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)) + " |" for line in [headings, *lines]
    )
    return "\n".join([head, "|" + "|".join("-" * (width + 2) for width in widths) + "|", *shown])
