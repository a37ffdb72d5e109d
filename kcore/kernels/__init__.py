"""Numba kernels over arrays, for notebooks and other bulk work: `pip install 'kcore[kernels]'`.

A kernel reads all the bytes of its input.  np.fromfile() reads them from a file.  np.memmap() avoids the copy, but only
use it for a file that no process changes: after the file is truncated, a read of the mapping ends the process (SIGBUS).

Each is compiled at its first call (a second or so) and cached.  Nothing of the broker imports this package.
"""

from kcore.common.optional_packages import missing_package

try:
    import numba  # noqa: F401
except ImportError as error:
    raise missing_package("kcore.kernels", "kernels", error) from None
