"""Chance, ids, clocks and threads are arguments: the product does not call random, uuid4, time or Thread itself.

A simulation passes a seeded Random, a MockTime, a MockScheduler and an inline executor; with one bare call in what it
runs the same seed no longer gives the same run.
"""

import ast
import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent / "kcore"

#: What nobody may name outside ALLOWED, by module.  Random itself is the type of the argument.
BARE = {
    "random": lambda name: name != "Random",
    "secrets": lambda name: True,
    "uuid": lambda name: name in {"uuid1", "uuid4", "getnode"},
    "os": lambda name: name in {"urandom", "getrandom"},
    "time": lambda name: (
        name.removesuffix("_ns") in {"time", "monotonic", "perf_counter", "process_time", "clock_gettime"}
        or name in {"sleep", "localtime", "gmtime"}
    ),
    "datetime": lambda name: name.split(".")[-1] in {"now", "utcnow", "today"},
    "threading": lambda name: name in {"Thread", "Timer"},
    "_thread": lambda name: name.startswith("start_new"),
    "concurrent.futures": lambda name: name in {"ThreadPoolExecutor", "ProcessPoolExecutor"},
    "multiprocessing": lambda name: True,
    "posix.time": lambda name: name == "clock_gettime",
}

#: Rooms that no simulation of brokers runs: commands, a page, Spark, notebooks, and what tests import.
OUTSIDE = {"tools", "web", "inspect", "bulk", "spark", "kernels", "testing"}

#: module -> what it may name, and why.
ALLOWED = {
    "common.time": {"time.time_ns", "time.monotonic_ns", "time.sleep"},  # the system's clocks: Time
    "common.random_source": {"random.SystemRandom"},  # the system's randomness: SYSTEM_RANDOM
    "common.executors": {"concurrent.futures.ThreadPoolExecutor"},  # the default of what a simulation replaces
    # The loops around do_work() and around due tasks.  A simulation calls do_work(), and passes a MockScheduler.
    "common.shutdownable_thread": {"threading.Thread"},
    "common.scheduler": {"threading.Thread"},
    # What commands and Spark jobs print while they work; no broker has one.
    "common.progress": {"threading.Timer", "time.monotonic"},
    # What commands ask brokers; no broker uses either, and a simulation has no sockets.
    "client.first_answer": {"threading.Thread"},
    "client.admin_client": {"threading.Timer"},
    # Threads that take requests out of a queue.  A simulation calls the handlers, or what is below them.
    "server.requests.request_handler_pool": {"threading.Thread"},
    # Whoever reports the last failed directory may hold locks that the stop needs.  A simulation has no Broker.
    "server.broker": {"threading.Thread"},
    # Time.milliseconds() without a call into Python, and only where the clock that was passed in is the system's.
    "log.log_hot_path": {"posix.time.clock_gettime"},
    # Metrics: how long requests took.  Nothing is decided by them.
    "common.meters": {"posix.time.clock_gettime"},
    # A metric: how long a conversion took.  Nothing is decided by it.
    "log.log_validator": {"time.perf_counter_ns"},
    # The key of a keyed hash, so that no producer can choose keys that collide.  The map's answers do not depend on it.
    "log.offset_map": {"os.urandom"},
    # A bulk load that was interrupted is finished before logs are loaded; its partitions do not depend on each other.
    "log.load_journal": {"concurrent.futures.ThreadPoolExecutor"},
}

_CYTHON_IMPORT = re.compile(r"^\s*(?:from\s+([\w.]+)\s+c?import\s+(.+)|c?import\s+([\w.]+)(?:\s+as\s+(\w+))?)$")


def bare_names_in_python(text: str) -> set[str]:
    """As module.name, everything in BARE that the text names, whatever it calls the module."""
    tree = ast.parse(text)
    full_names = {}  # local name -> what it stands for
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                full_names[alias.asname or alias.name.split(".")[0]] = (
                    alias.name if alias.asname else alias.name.split(".")[0]
                )
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                full_names[alias.asname or alias.name] = f"{node.module}.{alias.name}"
                names.add(f"{node.module}.{alias.name}")
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            parts = []
            while isinstance(node, ast.Attribute):
                parts.append(node.attr)
                node = node.value
            if isinstance(node, ast.Name) and node.id in full_names:
                names.add(".".join([full_names[node.id], *reversed(parts)]))
        if isinstance(node, ast.Call) and not node.args and isinstance(node.func, ast.Name | ast.Attribute):
            called = ast.unparse(node.func).split(".")
            if ".".join([full_names.get(called[0], called[0]), *called[1:]]) == "random.Random":
                names.add("random.Random()")  # seeded by the system
    return {name for name in names if is_bare(name)}


def bare_names_in_cython(text: str) -> set[str]:
    code = re.sub(r'"""[\s\S]*?"""|#[^\n]*', "", text)
    modules, names = {}, set()
    for line in code.splitlines():
        match = _CYTHON_IMPORT.match(line)
        if match and match[1]:
            names.update(f"{match[1]}.{name.split()[0]}" for name in match[2].strip("() ").split(",") if name.strip())
        elif match:
            modules[match[4] or match[3]] = match[3]
    for local, module in modules.items():
        names.update(f"{module}.{name}" for name in re.findall(rf"\b{re.escape(local)}\.(\w+)", code))
    return {name for name in names if is_bare(name)}


def is_bare(name: str) -> bool:
    return any(name.startswith(module + ".") and rule(name[len(module) + 1 :]) for module, rule in BARE.items())


def product_modules():
    for path in sorted(ROOT.rglob("*")):
        if path.suffix in {".py", ".pyx", ".pxd"} and path.relative_to(ROOT).parts[0] not in OUTSIDE:
            yield ".".join(path.relative_to(ROOT).with_suffix("").parts), path


def bare_names_of(path: pathlib.Path) -> set[str]:
    return (bare_names_in_python if path.suffix == ".py" else bare_names_in_cython)(path.read_text())


def test_the_product_is_passed_its_chance_clocks_and_threads():
    unexpected = {
        f"{module}: {name}"
        for module, path in product_modules()
        for name in bare_names_of(path) - ALLOWED.get(module, set())
    }
    assert not unexpected, "pass a Random, Time, Scheduler or ExecutorFactory in instead"


def test_no_exception_outlives_its_reason():
    named = {}
    for module, path in product_modules():
        named.setdefault(module, set()).update(bare_names_of(path))
    assert {(module, name) for module, names in ALLOWED.items() for name in names - named.get(module, set())} == set()


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("import random\nx = random.randrange(3)", "random.randrange"),
        ("from random import choice", "random.choice"),
        ("import random as r\nr.Random()", "random.Random()"),
        ("from random import Random\nRandom()", "random.Random()"),
        ("import uuid\nf(uuid.uuid4)", "uuid.uuid4"),
        ("import os\nos.urandom(3)", "os.urandom"),
        ("import time as system_time\nsystem_time.sleep(1)", "time.sleep"),
        ("import datetime\ndatetime.datetime.now()", "datetime.datetime.now"),
        ("from datetime import datetime\ndatetime.now()", "datetime.datetime.now"),
        ("import threading\nclass T(threading.Thread): pass", "threading.Thread"),
        (
            "import concurrent.futures\nconcurrent.futures.ThreadPoolExecutor(3)",
            "concurrent.futures.ThreadPoolExecutor",
        ),
        ("def f():\n    from concurrent.futures import ThreadPoolExecutor", "concurrent.futures.ThreadPoolExecutor"),
    ],
)
def test_a_bare_call_is_seen_whatever_its_module_is_called(text, name):
    assert bare_names_in_python(text) == {name}


@pytest.mark.parametrize(
    "text",
    [
        "from random import Random\ndef f(random: Random): return random.random()",
        "import random\nrandom.Random(7)",
        "import os, threading\nos.getpid()\nthreading.Lock()",
        "self.time.sleep(3)\ntime.milliseconds()",
        "from datetime import datetime\ndatetime.fromtimestamp(3)",
    ],
)
def test_an_argument_and_a_seeded_source_are_no_bare_calls(text):
    assert bare_names_in_python(text) == set()


def test_cython_is_searched_too():
    text = '''"""time.sleep"""
import time
from posix.time cimport CLOCK_REALTIME, clock_gettime  # time.monotonic
t = time.time_ns()
'''
    assert bare_names_in_cython(text) == {"time.time_ns", "posix.time.clock_gettime"}
