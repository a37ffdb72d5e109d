"""docs/architecture.md names functions as `file:function`: each is there."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "architecture.md"
NAMED = sorted(set(re.findall(r"`([\w/]+\.pyx?):([\w.]+)`", PAGE.read_text())))


def is_defined(text: str, name: str) -> bool:
    """Whether a module's text defines a class, a function, or a method of a class that it defines."""
    owner, _, method = name.rpartition(".")
    if not owner:
        return re.search(rf"^(?:async )?(?:cdef |cpdef )?(?:class|def) {name}\b", text, re.M) is not None
    # A Cython class may have been announced before.
    bodies = re.findall(rf"^(?:cdef )?class {owner}\b.*\n((?:(?:[ \t].*|[)\]].*)?\n)*)", text, re.M)
    return any(re.search(rf"^    (?:def|c?p?def [\w ]+) ?{method}\(", body, re.M) for body in bodies)


@pytest.mark.parametrize(("file", "name"), NAMED)
def test_each_function_of_the_page_is_in_its_file(file, name):
    assert is_defined((ROOT / "kcore" / file).read_text(), name), f"{PAGE.name}: no {name} in kcore/{file}"


def test_the_page_has_the_flows():
    assert len(NAMED) > 60


MODULE = """
cdef class C

class A(B):
    def f(self):
        pass

cdef class C:
    cdef int g(self) except -1:
        pass

def h():
"""


def test_what_is_not_defined_is_noticed():
    assert all(is_defined(MODULE, name) for name in ("A", "A.f", "C.g", "h"))
    assert not any(is_defined(MODULE, name) for name in ("f", "A.g", "C.f", "A.h", "D.f", "i"))
