"""Every .pyx under kcore/ is one extension module, linked with one static library made of csrc/*.c.

Modules are translated and compiled on all cores.  On a terminal each one gives a line when it is done.
"""

import os
import sys
from glob import glob

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

try:
    from Cython.Build import cythonize
except ImportError:  # building from an sdist, which carries the generated C
    cythonize = None

if sys.platform == "win32":
    sys.exit("kcore needs Linux: its files are read and written with POSIX system calls.")

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
        "obj_deps": {"": [*headers, "setup.py"]},
    },
)
JOBS = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def extensions():
    pyx = sorted(glob("kcore/**/*.pyx", recursive=True))
    suffix = ".pyx" if cythonize else ".c"
    found = [
        Extension(
            os.path.splitext(path)[0].replace(os.sep, "."),
            [os.path.splitext(path)[0] + suffix],
            include_dirs=["csrc"],
            libraries=["kc"],
            depends=[*sources, *headers, "setup.py"],
            # Cython's own output is not warning-free under -Wextra.
            extra_compile_args=optimize,
            extra_link_args=ldflags,
        )
        for path in pyx
    ]
    if cythonize is None:
        return found
    generated = [path.removesuffix(".pyx") + ".c" for path in pyx]
    missing = [path for path in generated if not os.path.exists(path)]
    if missing and sys.stderr.isatty():
        print(f"translating {len(missing)} modules to C", file=sys.stderr)
    changed = os.path.getmtime("setup.py")
    return cythonize(
        found,
        compiler_directives={
            "language_level": 3,
            "boundscheck": False,
            "wraparound": False,
            "embedsignature": True,
            "embedsignature.format": "python",
        },
        nthreads=JOBS,
        # Cython looks at the .pyx and .pxd files, not at the options above.
        force=any(os.path.getmtime(path) < changed for path in set(generated) - set(missing)),
        quiet="-v" not in sys.argv,
    )


class BuildExtensions(build_ext):
    """build_ext on all cores, the largest module first."""

    def finalize_options(self):
        super().finalize_options()
        self.parallel = self.parallel or JOBS

    def build_extensions(self):
        self.extensions.sort(key=lambda module: -os.path.getsize(module.sources[0]))
        self.done = 0
        super().build_extensions()

    def build_extension(self, ext):
        path = self.get_ext_fullpath(ext.name)
        before = os.path.getmtime(path) if os.path.exists(path) else None
        super().build_extension(ext)
        self.done += 1
        if os.path.getmtime(path) != before and sys.stderr.isatty():
            print(f"[{self.done:2}/{len(self.extensions)}] {ext.name}", file=sys.stderr)


# Python 3.14 imports this file again in each process that translates.
if __name__ == "__main__":
    if os.environ.get("KCORE_LINK_ONLY"):  # `make` has compiled in place; pip links the checkout into the environment
        setup()
    else:
        setup(libraries=[library], ext_modules=extensions(), cmdclass={"build_ext": BuildExtensions})
