"""Numba kernels over mapped arrays, for notebooks and other bulk work: `pip install 'kcore[kernels]'`.

Each is compiled at its first call (a second or so) and cached.  Nothing of the broker imports this package.
"""

from kcore.common.optional_packages import missing_package

try:
    import numba  # noqa: F401
except ImportError as error:
    raise missing_package("kcore.kernels", "kernels", error) from None
