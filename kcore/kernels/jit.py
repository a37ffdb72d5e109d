"""How kernels are compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba


def kernel(function: Callable[..., Any]) -> Any:
    """Compiled at its first call, without the GIL while it runs, and kept on disk for the next process.

    Numba keeps code beside the source, or in the user's own cache directory where that cannot be written; never in
    a directory that everybody can write to, for what is kept there is unpickled.  Where there is neither (a Spark
    executor without a home, say) it raises, and each process compiles for itself.  Kept code is made anew when the
    kernel's file changes, and only that one: so a kernel's helpers live in its own file.
    """
    try:
        return numba.njit(nogil=True, cache=True)(function)
    except RuntimeError:
        return numba.njit(nogil=True)(function)
