"""Every behaviour of the storage layer has a test with its id in the name, and docs/acceptance.md says which.

`python -m tests.test_acceptance_list` writes the page anew.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "acceptance.md"

#: Group, how many ids it has, what it is about.
GROUPS = [
    ("TRUNC", 11, "Truncation"),
    ("EPOCH", 12, "Leader epochs"),
    ("LOG", 30, "The log"),
    ("SEG", 14, "Segments"),
    ("IDX", 18, "Indexes"),
    ("VAL", 24, "Validation of what producers send"),
    ("MRB", 13, "Writing batches"),
]
#: The corrections of the list's section 22 that concern the log.
CORRECTIONS = [2, 6, 7, 9, 10, 11, 12, 14]
IDS = [f"{group}_{n:02d}" for group, count, _ in GROUPS for n in range(1, count + 1)] + [
    f"V22_{n:02d}" for n in CORRECTIONS
]
_TEST = re.compile(r"^(?:    )?(?:async )?def (test_\w+)|^(test_\w+) = ", re.MULTILINE)
_ID = re.compile(r"(?<![A-Z0-9])((?:TRUNC|EPOCH|LOG|SEG|IDX|VAL|MRB|V22)_\d\d)(?!\d)")
_LINK = re.compile(r"`(tests/[\w/.]+)::(test_\w+)`")

_HEAD = """# The acceptance list and its tests

What Kafka's storage layer is held to, id by id, and the tests that hold kcore to it. The name of each test has its id.
Where kcore's behaviour is not Kafka's, compatibility.md says how and why.

Written by `python -m tests.test_acceptance_list`; tests/test_acceptance_list.py fails when an id has no test, and when
this page names a test that is no longer there.
"""


@cache
def tests_by_id() -> dict[str, list[str]]:
    """Id -> "file::test" of all tests with it in their names."""
    found: dict[str, list[str]] = {}
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        for match in _TEST.finditer(path.read_text()):
            name = match[1] or match[2]
            for known in _ID.findall(name):
                found.setdefault(known, []).append(f"{path.relative_to(ROOT)}::{name}")
    return found


@pytest.mark.parametrize("wanted", IDS)
def test_each_id_of_the_list_has_a_test_with_its_name(wanted):
    assert tests_by_id().get(wanted), f"no test is named test_{wanted}_..."


def test_no_test_carries_an_id_that_the_list_does_not_have():
    assert [found for found in tests_by_id() if found not in IDS] == []


def test_the_page_names_a_test_for_each_id_and_only_tests_that_are_there():
    rows = {line.split("|")[1].strip(): line for line in PAGE.read_text().splitlines() if line.startswith("| ")}
    existing = {test for tests in tests_by_id().values() for test in tests}
    for wanted in IDS:
        links = ["::".join(link) for link in _LINK.findall(rows.get(wanted.replace("_", "-"), ""))]
        assert links, f"{PAGE.name} has no row for {wanted}: run python -m tests.test_acceptance_list"
        assert [link for link in links if link not in existing] == [], f"{PAGE.name}, {wanted}: no such test"


def page() -> str:
    found = tests_by_id()
    lines = [_HEAD]
    sections = [(about, [f"{group}_{n:02d}" for n in range(1, count + 1)]) for group, count, about in GROUPS]
    for about, ids in [*sections, ("Later corrections", [f"V22_{n:02d}" for n in CORRECTIONS])]:
        lines += [f"## {about}", "| id | tests |", "| --- | --- |"]
        lines += [f"| {i.replace('_', '-')} | {'<br>'.join(f'`{test}`' for test in found.get(i, []))} |" for i in ids]
        lines.append("")
    return "\n".join(lines)


if __name__ == "__main__":
    PAGE.write_text(page())
