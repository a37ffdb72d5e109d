"""How kernels are compiled, and the error on a machine without Numba."""

import subprocess
import sys
from types import SimpleNamespace

import pytest

pytest.importorskip("numba")


def run(code, **environment):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment or None)


def test_without_numba_the_error_names_the_extra():
    done = run("import sys; sys.modules['numba'] = None; import kcore.kernels.batch_scan")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith(
        "ModuleNotFoundError: kcore.kernels needs numba: pip install 'kcore[kernels]'"
    )


def test_nothing_that_kcore_imports_by_itself_imports_the_kernels():
    code = "import sys, kcore, kcore.server.broker, kcore.tools.main; print('numba' in sys.modules)"
    assert run(code).stdout.strip() == "False"


def test_where_code_cannot_be_kept_it_is_compiled_for_the_process(monkeypatch):
    import numba

    from kcore.kernels import jit

    def njit(**options):
        def compile_or_refuse(function):
            if options.get("cache"):
                raise RuntimeError(f"cannot cache function {function.__name__!r}: no locator available")
            return numba.njit(**options)(function)

        return compile_or_refuse

    monkeypatch.setattr(jit, "numba", SimpleNamespace(njit=njit))

    def double(n):
        return 2 * n

    compiled = jit.kernel(double)
    assert compiled(21) == 42
    assert compiled.signatures
