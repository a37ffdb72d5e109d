"""Modules that the documentation named before they moved: their former paths go on naming the same modules."""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType

MOVED = {
    "kcore.log.bulk_load": "kcore.bulk.bulk_load",
    "kcore.spark.latency_histogram": "kcore.spark.load.latency_histogram",
    "kcore.spark.load_options": "kcore.spark.load.load_options",
    "kcore.spark.load_test": "kcore.spark.load.load_test",
    "kcore.spark.plot": "kcore.spark.load.plot",
}


class MovedModules:
    """A finder and loader at the end of sys.meta_path: it is asked for no module that is where it is imported from."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        return ModuleSpec(name, MovedModules) if name in MOVED else None  # type: ignore[arg-type]

    @staticmethod
    def create_module(spec: ModuleSpec) -> None:
        """The default: a module that exec_module() replaces."""

    @staticmethod
    def exec_module(module: ModuleType) -> None:
        sys.modules[module.__name__] = import_module(MOVED[module.__name__])
