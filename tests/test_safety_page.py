"""docs/safety.md says of each fault what kcore does, what a user sees, and which tests show it: those are there."""

import re

import pytest

from tests.pages import ROOT

PAGE = (ROOT / "docs" / "safety.md").read_text()
#: Heading -> text of each fault.
FAULTS = dict(re.findall(r"^### (.+)\n\n([^#]+)", PAGE, re.M))
TESTS = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", PAGE)


@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault_says_what_kcore_does_what_one_sees_and_which_tests_show_it(fault):
    kcore, seen, tests = re.split(r"\n- (?=[A-Z])", FAULTS[fault])
    assert kcore.startswith("- kcore: ") and seen.startswith("You see: ") and tests.startswith("Tests: ")
    assert re.fullmatch(r"Tests:(\s+`tests/[\w/]+\.py::\w+`,?)+", tests.strip()), "something else than names of tests"


@pytest.mark.parametrize(("file", "name"), TESTS)
def test_each_test_of_the_page_is_in_its_file(file, name):
    text = (ROOT / file).read_text() if (ROOT / file).is_file() else ""
    assert re.search(rf"^(?:    )?(?:async )?(?:def {name}\(|{name} = )", text, re.M), f"no {name} in {file}"


def test_the_page_has_the_faults():
    assert len(FAULTS) > 20
    assert len(TESTS) > 80
    assert len(FAULTS) == PAGE.count("\n### ")
