"""docs/architecture.md, flows/ and threads.md name functions as `file:function`: each is there, and calls what its
arrow leads to."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
FLOWS = sorted((DOCS / "flows").glob("*.md"))
PAGES = [DOCS / "architecture.md", *FLOWS, DOCS / "threads.md"]
FUNCTION = r"`([\w/]+\.pyx?):([\w.]+)`"

#: Arrows a → b where the code of a does not name b, and how a reaches it.
INDIRECT_CALLS = {
    ("LogDirFailureHandler.do_work", "_handle_log_dir_failure"): "a callback, given to its constructor",
    ("Broker._end", "ClusterMembership._hand_over"): "a callback of the ExitStack that it closes",
    ("Partition.maybe_replace_current_with_future_log", "LogManager.replace_current_with_future_log"): "an argument",
    ("ask_broker", "MonitorSocket.do_work"): "through a socket",
    ("MonitorSocket._answer", "Broker.metrics"): "the table of commands in start_monitor",
}


def code_of(text: str, name: str) -> str | None:
    """What a module's text has below the first line of a class, a function or a `Class.method`; None without it.

    Comments and docstrings are left out.
    """
    text = re.sub(r'"""[\s\S]*?"""|#.*', "", text)
    indent = ""
    for part in name.split("."):
        head = rf"^{indent}(?:async )?(?:class|c?p?def)(?: [\w ]+)? {part}[(:].*\n"
        bodies = re.findall(rf"{head}((?:(?:{indent}[ )\]].*)?\n)*)", text, re.M)
        if not bodies:
            return None
        text = "".join(bodies)
        indent += "    "
    return text


def arrows_of(text: str) -> list[tuple[str, str, str, str]]:
    """(file, function, file, function) of each arrow between two functions of the same list item or paragraph."""
    found: list[tuple[str, str, str, str]] = []
    for item in re.split(r"\n\n|\n(?= *(?:\d\.|-|\|) )", text):
        between, *parts = re.split(FUNCTION, item)
        previous: list[str] = []
        while parts:
            if previous and between.rstrip().endswith("→"):
                found.append((*previous, *parts[:2]))
            previous, between, parts = parts[:2], parts[2], parts[3:]
    return found


NAMED = sorted({name for page in PAGES for name in re.findall(FUNCTION, page.read_text())})
#: Of the lists; the texts before them leave steps out.
ARROWS = sorted(
    {arrow for page in FLOWS for arrow in arrows_of(page.read_text().partition("## The functions, in order")[2])}
)


@pytest.mark.parametrize(("file", "name"), NAMED)
def test_each_function_of_the_page_is_in_its_file(file, name):
    assert code_of((ROOT / "kcore" / file).read_text(), name) is not None, f"no {name} in kcore/{file}"


@pytest.mark.parametrize(("file", "caller", "callee_file", "callee"), ARROWS)
def test_each_arrow_of_the_page_is_a_call(file, caller, callee_file, callee):
    code = code_of((ROOT / "kcore" / file).read_text(), caller)
    assert code is not None
    is_called = re.search(rf"\b{callee.split('.')[-1]}\b", code) is not None
    is_indirect = (caller, callee) in INDIRECT_CALLS
    assert is_called != is_indirect, (
        f"INDIRECT_CALLS: {caller} names {callee} now"
        if is_called
        else f"{caller} in kcore/{file} does not call {callee} of kcore/{callee_file}"
    )


def test_a_person_can_read_the_page():
    assert len((DOCS / "architecture.md").read_text().splitlines()) <= 150


def test_each_link_between_the_pages_leads_to_a_file():
    for page in PAGES:
        for target in re.findall(r"\]\((?!http)([^)#]+)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_the_pages_have_the_flows():
    assert len(NAMED) > 60
    assert len(ARROWS) > 90
    assert INDIRECT_CALLS.keys() <= {(caller, callee) for _, caller, _, callee in ARROWS}


MODULE = '''
cdef class C

class A(B):
    def f(
        self,
    ) -> None:
        """Not called: x()."""
        self.g()  # and not y()

cdef class C:
    cdef int count
    cdef int g(self) except -1:
        pass

def h():
'''


def test_what_is_not_defined_is_noticed():
    assert all(code_of(MODULE, name) is not None for name in ("A", "A.f", "C.g", "h"))
    assert all(code_of(MODULE, name) is None for name in ("f", "A.g", "C.f", "C.count", "A.h", "D.f", "i"))


def test_the_code_of_a_function_ends_with_it_and_has_no_comments():
    assert "".join(code_of(MODULE, "A.f").split()) == "self,)->None:self.g()"
    assert "".join(code_of(MODULE, "C").split()) == "cdefintcountcdefintg(self)except-1:pass"


def test_arrows_join_functions_of_one_item():
    page = (
        "1. `a.py:f` → `b.pyx:C.g`, `b.py:h`\n2. `c.py:i`, without a lock →\n   `c.py:j`: then `c.py:k`\n\n→ `c.py:l`\n"
    )
    assert arrows_of(page) == [("a.py", "f", "b.pyx", "C.g"), ("c.py", "i", "c.py", "j")]
