"""Numba kernels over arrays, for notebooks and other bulk work: `pip install 'kcore[kernels]'`.

A kernel touches the bytes that it is given.  np.fromfile() reads them from a file.  np.memmap() spares the copy, but is
only for a file that nobody changes: a page of a mapping that its owner cuts off is a SIGBUS, which ends the process.

Each is compiled at its first call (a second or so) and cached.  Nothing of the broker imports this package.
"""

from kcore.common.optional_packages import missing_package

try:
    import numba  # noqa: F401
except ImportError as error:
    raise missing_package("kcore.kernels", "kernels", error) from None
