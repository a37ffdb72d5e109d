"""How kernels are compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba


def kernel(function: Callable[..., Any]) -> Any:
    """Compiles the function at its first call, to run without the GIL, and caches the code on disk.

    Numba caches the code beside the source, or, if it cannot write there, in the user's own cache directory; never in
    a directory that everybody can write to, because cached code is unpickled.  Without either directory (for example
    in a Spark executor without a home) Numba raises, and each process compiles for itself.  The cache is invalidated
    only when the kernel's own file changes: so a kernel's helpers must be in the same file.
    """
    try:
        return numba.njit(nogil=True, cache=True)(function)
    except RuntimeError:
        return numba.njit(nogil=True)(function)
