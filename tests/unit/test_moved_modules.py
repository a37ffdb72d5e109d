"""Modules that have moved are still imported by the paths that the documentation named."""

import importlib
import sys

import pytest

from kcore.moved_modules import MOVED


@pytest.mark.parametrize("former", MOVED)
def test_a_former_path_names_the_same_module(former, monkeypatch):
    pytest.importorskip("pyarrow")
    new = importlib.import_module(MOVED[former])
    spec = new.__spec__
    monkeypatch.delitem(sys.modules, former, raising=False)
    assert importlib.import_module(former) is new
    assert sys.modules[former] is new and new.__name__ == MOVED[former] and new.__spec__ is spec


def test_other_missing_modules_raise_module_not_found_error():
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("kcore.log.bulk_loader")
