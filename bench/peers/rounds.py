"""What the comparisons of bench/peers have in common: rounds of two sides, their ratio, their spread."""

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
