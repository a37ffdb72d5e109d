"""What the comparisons of bench/peers have in common: rounds of two sides, their ratio, their spread."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from bench.tables import markdown_table

VERDICTS = {True: "met", False: "MISSED", None: "not measured"}

#: What one round of one side measured: (row, unit) -> figure.
Rows = dict[tuple[str, str], float]
#: Unit -> whether more is better, and row -> the goal as a ratio of kcore to its rival.
Goals = Mapping[str, tuple[bool, Mapping[str, float]]]


def ratio(ours: Sequence[float], rivals: Sequence[float]) -> float:
    """How many times as fast we are: the median over pairs of neighbouring rounds, which met the same machine."""
    return statistics.median(b / a for a, b in zip(ours, rivals, strict=True))


def spread(rounds: Sequence[float]) -> str:
    """The interquartile range over the median."""
    median = statistics.median(rounds)
    quartiles = statistics.quantiles(rounds, n=4, method="inclusive") if len(rounds) > 1 else [median] * 3
    return f"{(quartiles[2] - quartiles[0]) / median:.0%}" if median else ""


def table_of_rounds(results: Mapping[str, Sequence[Rows]], goals: Goals) -> str:
    """A line for each row and unit: the median and spread of each side, and for two sides the ratio of the first to the
    second (over pairs of neighbouring rounds), and whether the row's goal is met."""
    lines = []
    names = list(results)
    for row, unit in results[names[0]][0]:
        values = {name: [one[row, unit] for one in rounds] for name, rounds in results.items()}
        medians = {name: statistics.median(one) for name, one in values.items()}
        cells = [row, unit, *(f"{medians[name]:,.1f} (±{spread(values[name])})" for name in names)]
        if len(names) == 2 and medians[names[1]]:
            times = ratio(values[names[1]], values[names[0]])
            more_is_better, of_rows = goals.get(unit, (False, {}))
            goal = of_rows.get(row)
            is_met = goal is not None and (times >= goal if more_is_better else times <= goal)
            verdict = "" if goal is None else f"{'>=' if more_is_better else '<='} {goal}: {VERDICTS[is_met]}"
            cells += [f"{times:.2f}", verdict]
        lines.append(cells)
    columns = ["row", "unit", *(f"{name} (median, spread)" for name in names)]
    return markdown_table(columns + (["ratio", "goal"] if len(names) == 2 else []), lines)
