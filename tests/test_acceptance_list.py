"""Every behaviour of docs/behaviours.md has a test with its id in the name, or is in NOT_YET with the reason.

`python -m tests.test_acceptance_list` writes docs/acceptance.md (id, tests) anew.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
BEHAVIOURS = ROOT / "docs" / "behaviours.md"
PAGE = ROOT / "docs" / "acceptance.md"

#: What is still to be built, or has no test of its own: reason -> ids, `GROUP-from..to` for a range.  An id leaves this
#: table when its first test carries it, and cannot come back unseen: an id that is not here must have a test.
NOT_YET: dict[str, str] = {}
_TEST = re.compile(r"^(?:    )?(?:async )?def (test_\w+)|^(test_\w+) = ", re.MULTILINE)
_HEADING = re.compile(r"^## (.+?)(?: \([A-Z0-9, ]+\))?$")
_SENTENCE = re.compile(r"^- \*\*([A-Z0-9]+-\d\d)\*\* (.+)$")
_LINK = re.compile(r"`(tests/[\w/.]+)::(test_\w+)`")

_HEAD = """# The tests of each behaviour

[behaviours.md](behaviours.md) says what each id means. This page has the tests of each id; their names have the id too.
Where kcore's behaviour is not Kafka's, [compatibility.md](compatibility.md) says how and why.

Written by `python -m tests.test_acceptance_list`; tests/test_acceptance_list.py fails when an id has neither a test nor
a reason why not, and when this page names a test that is no longer there.
"""


@cache
def sections() -> dict[str, dict[str, str]]:
    """Heading -> id -> sentence, as docs/behaviours.md has them."""
    headings: dict[str, dict[str, str]] = {}
    rows: dict[str, str] = {}
    for line in BEHAVIOURS.read_text().splitlines():
        if heading := _HEADING.match(line):
            rows = headings.setdefault(heading[1], {})
        elif sentence := _SENTENCE.match(line):
            assert all(sentence[1] not in ids for ids in headings.values()), f"{sentence[1]} appears twice"
            rows[sentence[1]] = sentence[2]
    return headings


def all_ids() -> list[str]:
    return [name for rows in sections().values() for name in rows]


def _groups() -> str:
    return "|".join(sorted({name.rpartition("-")[0] for name in all_ids()}))


@cache
def tests_by_id() -> dict[str, list[str]]:
    """Id -> "file::test" of all tests with it in their names."""
    pattern = re.compile(rf"(?<![A-Z0-9])({_groups()})_(\d\d)(?!\d)")
    tests: dict[str, list[str]] = {}
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        for match in _TEST.finditer(path.read_text()):
            name = match[1] or match[2]
            for group, number in pattern.findall(name):
                tests.setdefault(f"{group}-{number}", []).append(f"{path.relative_to(ROOT)}::{name}")
    return tests


@cache
def not_yet() -> dict[str, str]:
    """Id -> why it has no test, for the ids of NOT_YET."""
    reasons: dict[str, str] = {}
    for reason, names in NOT_YET.items():
        for name in names.split():
            group, _, numbers = name.rpartition("-")
            first, _, last = numbers.partition("..")
            for number in range(int(first), int(last or first) + 1):
                assert f"{group}-{number:02d}" not in reasons, f"{group}-{number:02d} appears twice in NOT_YET"
                reasons[f"{group}-{number:02d}"] = reason
    return reasons


def mentioned_ids(text: str) -> set[str]:
    """All ids that text names: `VAL-07`, `PURG-11..16`, `LOG-03, 06, 10` and `SEG_06` in names."""
    names = set()
    for match in re.finditer(rf"(?<![A-Z0-9])({_groups()})[-_](\d\d(?:(?:\.\.\.?|…|, | and |/)\d\d)*)(?!\d)", text):
        numbers = re.split(r"(\.\.\.?|…|, | and |/)", match[2])
        names.add(f"{match[1]}-{numbers[0]}")
        for mark, number in zip(numbers[1::2], numbers[2::2], strict=True):
            names.add(f"{match[1]}-{number}")
            if mark[0] in ".…":
                names |= {f"{match[1]}-{n:02d}" for n in range(int(numbers[0]), int(number))}
    return names


@pytest.mark.parametrize("name", all_ids())
def test_each_id_has_a_test_with_its_name_or_a_reason_why_not(name):
    tests, reason = tests_by_id().get(name), not_yet().get(name)
    assert tests or reason, f"no test is named test_{name.replace('-', '_')}_..., and NOT_YET does not say why"
    assert not (tests and reason), f"{name} has tests ({tests}): take it out of NOT_YET"


def test_only_ids_of_the_list_are_given_a_reason():
    assert not_yet().keys() - set(all_ids()) == set()


def test_an_id_in_a_text_is_recognised_in_each_of_its_forms():
    assert mentioned_ids("VAL-07, LOG-03, 06, 10; PURG-11..13 and test_SEG_06_x; UTF-16, V22-11.") == {
        *("VAL-07", "LOG-03", "LOG-06", "LOG-10", "PURG-11", "PURG-12", "PURG-13", "SEG-06", "V22-11")
    }


@pytest.mark.parametrize("folder", ["kcore", "csrc", "tests", "docs", "bench", "examples", "ci"])
def test_every_id_that_is_mentioned_has_a_sentence(folder):
    suffixes = {".py", ".pyi", ".pyx", ".pxd", ".h", ".md", ".txt"}
    unknown = {}
    for path in sorted((ROOT / folder).rglob("*")):
        # Cython writes x.c beside x.pyx; csrc has C of its own.
        is_source = path.suffix in suffixes or (path.suffix == ".c" and not path.with_suffix(".pyx").exists())
        if is_source and path.is_file() and path != Path(__file__):
            for name in mentioned_ids(path.read_text(errors="replace")) - set(all_ids()):
                unknown.setdefault(name, []).append(str(path.relative_to(ROOT)))
    assert unknown == {}, "ids without a sentence in docs/behaviours.md"


def test_the_page_has_each_id_without_its_sentence_and_only_tests_that_are_there():
    rows = {line.split("|")[1].strip(): line for line in PAGE.read_text().splitlines() if line.startswith("| ")}
    existing = {test for tests in tests_by_id().values() for test in tests}
    for ids in sections().values():
        for name, sentence in ids.items():
            assert name in rows and sentence not in rows[name], (
                f"{PAGE.name}, {name}: run python -m tests.test_acceptance_list"
            )
            links = ["::".join(link) for link in _LINK.findall(rows[name])]
            assert links or name in not_yet(), f"{name}: run python -m tests.test_acceptance_list"
            assert [link for link in links if link not in existing] == [], f"{PAGE.name}, {name}: no such test"


def page() -> str:
    tests = tests_by_id()
    lines = [_HEAD]
    for heading, rows in sections().items():
        if rows:
            lines += [f"## {heading}", "| id | tests |", "| --- | --- |"]
            for name in rows:
                links = "<br>".join(f"`{test}`" for test in tests.get(name, [])) or f"not yet: {not_yet().get(name)}"
                lines.append(f"| {name} | {links} |")
            lines.append("")
    return "\n".join(lines)


if __name__ == "__main__":
    PAGE.write_text(page())
