"""report.py FILE.json ...: pytest-benchmark's results as a table of ratios, with the goals that were set.

What it looks for in extra_info is written at the top of bench/conftest.py.  --strict exits 1 when a goal is missed.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # as a script too

from bench.tables import markdown_table


@dataclass
class Member:
    """One benchmark of a group."""

    group: str
    name: str
    role: str
    case: str | None
    label: str
    unit: str
    seconds: float  # median, per unit
    spread: float  # interquartile range / median
    goals: list[dict[str, Any]]

    @classmethod
    def of(cls, benchmark: dict[str, Any]) -> Member:
        info, stats = benchmark["extra_info"], benchmark["stats"]
        goals = info.get("goal", [])
        case = info.get("case")
        return cls(
            group=benchmark["group"] or benchmark["name"],
            name=benchmark["name"],
            role=info["role"],
            case=None if case is None else str(case),
            label=info.get("label") or (benchmark["name"] if info["role"] == "peer" else info["role"]),
            unit=info.get("unit", "op"),
            seconds=stats["median"] / info["per_round"],
            spread=stats["iqr"] / stats["median"] if stats["median"] else 0.0,
            goals=goals if isinstance(goals, list) else [goals],
        )


@dataclass
class Verdict:
    text: str
    met: bool | None  # None: nothing to hold it against in this run


def rivals(member: Member, role: str, members: list[Member], name: str | None = None) -> list[Member]:
    """The others of its group in that role, fastest first; those of another case left out."""
    found = [
        other
        for other in members
        if other.group == member.group
        and other.role == role
        and (other.case is None or member.case is None or other.case == member.case)
        and (name is None or name in (other.label, other.name))
    ]
    return sorted(found, key=lambda other: other.seconds)


def judge(member: Member, goal: dict[str, Any], members: list[Member]) -> Verdict:
    """Whether the member reaches one of its goals."""
    text = goal.get("text")
    needed = goal.get("where_limit_reaches")
    if needed is not None:
        limits = rivals(member, "limit", members)
        if not limits or 1 / limits[0].seconds < needed:
            return Verdict(text or f"only where the limit reaches {rate(1 / needed, member.unit)}", None)
    if "at_most_ns" in goal:
        bound = goal["at_most_ns"]
        return Verdict(text or f"<= {duration(bound * 1e-9)}", member.seconds * 1e9 <= bound)
    if "at_least_per_s" in goal:
        bound = goal["at_least_per_s"]
        return Verdict(text or f">= {rate(1 / bound, member.unit)}", 1 / member.seconds >= bound)
    role, bound = goal["vs"], goal["at_most"]
    if text is None:
        whose = goal.get("name", role)
        text = (
            f"<= {bound:.3g}x time of {whose}" if bound >= 0.999 or role == "limit" else f">= {1 / bound:.3g}x {whose}"
        )
    others = rivals(member, role, members, goal.get("name"))
    return Verdict(text, member.seconds / others[0].seconds <= bound if others else None)


def duration(seconds: float) -> str:
    for factor, unit in ((1, "s"), (1e3, "ms"), (1e6, "us"), (1e9, "ns")):
        if seconds * factor >= 1 or unit == "ns":
            return f"{seconds * factor:.3g} {unit}"
    raise AssertionError


def rate(seconds: float, unit: str) -> str:
    """Units per second, the way the unit is usually told."""
    per_second = 1 / seconds
    if unit == "byte":
        return f"{per_second / 1e9:.3g} GB/s" if per_second >= 1e8 else f"{per_second / 1e6:.3g} MB/s"
    scaled = f"{per_second / 1e6:.3g} M" if per_second >= 1e6 else f"{per_second:,.0f} "
    return f"{scaled}{' ' if scaled.endswith('M') else ''}{unit}{'es' if unit.endswith('ch') else 's'}/s"


def figure(member: Member) -> str:
    """Operations in time each, anything else as a rate."""
    return duration(member.seconds) if member.unit == "op" else rate(member.seconds, member.unit)


def rows(members: list[Member]) -> tuple[list[list[str]], list[tuple[Member, Verdict]]]:
    """The table, one row for each member of role "ours" and for each rival; and every goal with its verdict."""
    table: list[list[str]] = []
    verdicts: list[tuple[Member, Verdict]] = []
    for group in dict.fromkeys(member.group for member in members):
        inside = [member for member in members if member.group == group]
        title = group
        for member in sorted(inside, key=lambda m: (m.case or "", ("ours", "limit", "peer").index(m.role), m.seconds)):
            limit = rivals(member, "limit", members)
            ours = rivals(member, "ours", members)
            row = [title, member.case or "", member.label, figure(member), f"{member.spread:.0%}", "", "", ""]
            title = ""
            if member.role == "ours":
                if limit:
                    row[5] = f"{member.seconds / limit[0].seconds:.2f}x"
                said = [judge(member, goal, members) for goal in member.goals]
                verdicts += [(member, verdict) for verdict in said]
                words = {True: "met", False: "MISSED", None: "not measured"}
                row[7] = "; ".join(f"{verdict.text}: {words[verdict.met]}" for verdict in said)
            elif member.role == "peer" and ours:
                row[6] = f"{member.seconds / ours[0].seconds:.2f}x"
            table.append(row)
    return table, verdicts


HEADINGS = ["group", "case", "who", "median", "spread", "time / limit", "ours is faster by", "goal"]


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="The benchmark table, as ratios.")
    parser.add_argument("files", nargs="+", metavar="FILE.json", help="what pytest --benchmark-json wrote")
    parser.add_argument("--strict", action="store_true", help="exit 1 when a goal is missed")
    args = parser.parse_args(argv)
    members: list[Member] = []
    strangers: list[str] = []
    for file in args.files:
        with open(file, encoding="utf-8") as stream:
            result = json.load(stream)
        notes = result.get("machine_info", {}).get("kcore", {})
        print(f"{file}: " + ", ".join(f"{name} {value}" for name, value in notes.items() if value is not None))
        for benchmark in result["benchmarks"]:
            if "role" in benchmark["extra_info"]:
                members.append(Member.of(benchmark))
            else:
                strangers.append(benchmark["name"])
    table, verdicts = rows(members)
    print()
    print(markdown_table(HEADINGS, table))
    print()
    missed = [(member, verdict) for member, verdict in verdicts if verdict.met is False]
    met = sum(verdict.met is True for _, verdict in verdicts)
    print(
        f"{met} of {len(verdicts)} goals met, {len(missed)} missed, {len(verdicts) - met - len(missed)} not measured."
    )
    for member, verdict in missed:
        case = f" [{member.case}]" if member.case else ""
        print(f"  missed: {member.group}{case}: {figure(member)}, goal {verdict.text}")
    if strangers:
        print(f"Without a role, so not in the table: {', '.join(strangers)}")
    return 1 if args.strict and missed else 0


if __name__ == "__main__":
    sys.exit(main())
