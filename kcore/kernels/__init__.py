"""Numba kernels over mapped arrays, for notebooks and other bulk work: `pip install 'kcore[kernels]'`.

Each is compiled at its first call (a second or so) and cached.  Nothing of the broker imports this package.
"""

try:
    import numba  # noqa: F401
except ImportError as error:
    raise ImportError(f"kcore.kernels needs Numba: pip install 'kcore[kernels]' ({error})") from None
