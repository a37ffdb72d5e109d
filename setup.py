"""Every .pyx under kcore/ is one extension module, linked with one static library made of csrc/*.c."""

import os
import sys
from glob import glob

from setuptools import Extension, setup

try:
    from Cython.Build import cythonize
except ImportError:  # building from an sdist, which carries the generated C
    cythonize = None

sources = sorted(glob("csrc/*.c"))
headers = sorted(glob("csrc/*.h"))
optimize = ["-O3", "-std=c11", "-g0", "-D_GNU_SOURCE"]
cflags = [*optimize, "-Wall", "-Wextra", "-Wno-unused-function"]
# KCORE_SANITIZE=address,undefined builds library and extensions for ci/sanitize.sh.
sanitize = os.environ.get("KCORE_SANITIZE")
ldflags = []
if sanitize:
    ldflags = [f"-fsanitize={sanitize}"]
    optimize += ["-g", "-O1", "-fno-omit-frame-pointer", "-fno-sanitize-recover=all", *ldflags]
    cflags += optimize
library = (
    "kc",
    {
        "sources": sources,
        "include_dirs": ["csrc"],
        "cflags": [*cflags, "-fPIC", "-fvisibility=hidden"],
        "obj_deps": {"": headers},
    },
)


def extensions():
    suffix = ".pyx" if cythonize else ".c"
    found = [
        Extension(
            os.path.splitext(path)[0].replace(os.sep, "."),
            [os.path.splitext(path)[0] + suffix],
            include_dirs=["csrc"],
            libraries=["kc"],
            depends=[*sources, *headers],
            # Cython's own output is not warning-free under -Wextra.
            extra_compile_args=optimize,
            extra_link_args=ldflags,
        )
        for path in sorted(glob("kcore/**/*.pyx", recursive=True))
    ]
    if cythonize is None:
        return found
    return cythonize(
        found,
        compiler_directives={
            "language_level": 3,
            "boundscheck": False,
            "wraparound": False,
            "embedsignature": True,
            "embedsignature.format": "python",
        },
        quiet="-v" not in sys.argv,
    )


setup(libraries=[library], ext_modules=extensions())
