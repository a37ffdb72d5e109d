"""Packs kcore as an archive for Spark's executors: native modules cannot be loaded from a --py-files zip."""

from __future__ import annotations

import importlib.util
import os
import platform
import sys
import sysconfig
import tarfile
import tempfile
from collections.abc import Iterator

#: Files that the package needs at run time; C, Cython and header files are left out.
_SUFFIXES = (".py", ".pyi", ".so", ".typed")
_TOP_LEVEL_MODULE = "pyspark_kcore"


def write_archive(path: str | os.PathLike[str]) -> list[str]:
    """Packs this installation's kcore as .tar.gz; returns the names in it.  After an error there is no archive.

    It runs on executors that have the same Python (3.x), system and machine, and kcore's dependencies.
    Raises ValueError for a name that Spark would not unpack, OSError.
    """
    path = os.path.abspath(os.fspath(path))
    if not path.endswith((".tgz", ".tar.gz")):
        raise ValueError(f"{path}: Spark unpacks archives that end with .tgz or .tar.gz")
    names = []
    directory, name = os.path.split(path)
    with tempfile.NamedTemporaryFile(dir=directory, prefix=f".{name}.", delete=False) as file:
        try:
            with tarfile.open(fileobj=file, mode="w:gz", compresslevel=6) as archive:
                for source, inside in _files():
                    archive.add(source, inside, recursive=False)
                    names.append(inside)
            file.flush()
            os.fchmod(file.fileno(), 0o644)
            os.replace(file.name, path)
        except BaseException:
            os.unlink(file.name)
            raise
    return names


def usage(path: str | os.PathLike[str]) -> list[str]:
    """The settings with which executors use the archive."""
    path = os.fspath(path)
    name = os.path.basename(path).partition(".")[0]
    return [f"--conf spark.archives={path}#{name}", f"--conf spark.executorEnv.PYTHONPATH=./{name}"]


def made_for() -> str:
    """The platform of the native modules in the archive."""
    return f"CPython {sys.version_info[0]}.{sys.version_info[1]}, {sysconfig.get_platform()}, {platform.libc_ver()[0]}"


def _files() -> Iterator[tuple[str, str]]:
    """(path, name in the archive), in order."""
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    package = os.path.join(root, "kcore")
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    for directory, below, files in os.walk(package):
        below[:] = sorted(name for name in below if name != "__pycache__")
        for name in sorted(files):
            # Only native modules of this Python: the directory may have others.
            if name.endswith(_SUFFIXES) and (not name.endswith(".so") or name.endswith(suffix)):
                source = os.path.join(directory, name)
                yield source, os.path.relpath(source, root)
    spec = importlib.util.find_spec(_TOP_LEVEL_MODULE)
    if spec is not None and spec.origin is not None:
        yield spec.origin, os.path.basename(spec.origin)
