"""What a package that is not installed is answered with: what needs it, and what to install."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from kcore.common.optional_packages import missing_package
from tests import golden_data

ROOT = Path(__file__).resolve().parents[2]
PARTITION = str(golden_data.partition_dir("g-none-0"))

SPARK = "kcore.spark needs {}: pip install 'kcore[spark]'"

#: The module that is missing, what is run, and the message.
IN_PYTHON = [
    ("pyarrow", "kcore.open_log({partition!r}).to_arrow()", "Arrow data needs pyarrow: pip install 'kcore[arrow]'"),
    ("pyarrow", "kcore.open_topic('.', 't')", "open_topic() needs pyarrow: pip install 'kcore[arrow]'"),
    ("numba", "import kcore.kernels", "kcore.kernels needs numba: pip install 'kcore[kernels]'"),
    (
        "pyarrow",
        "from kcore.kernels import record_columns as r; r.binary_views(b'', [], [])",
        "Arrow data needs pyarrow: pip install 'kcore[arrow]'",
    ),
    (
        "pyspark",
        "import kcore.spark; kcore.spark.local_session()",
        SPARK.format("pyspark"),
    ),
    (
        "pyarrow",
        "import kcore.spark; kcore.spark.local_session()",
        SPARK.format("pyarrow"),
    ),
    (
        "pandas",
        "import kcore.spark; kcore.spark.local_session()",
        SPARK.format("pandas"),
    ),
    (
        "pyarrow",
        "import kcore.spark; kcore.spark.enable(None)",
        SPARK.format("pyarrow"),
    ),
    ("pyarrow", "import kcore.spark.jobs", SPARK.format("pyarrow")),
    ("pyarrow", "import kcore.spark.load.load_test", SPARK.format("pyarrow")),
    ("pyspark", "import pyspark_kcore", SPARK.format("pyspark")),
    (
        "prometheus_client",
        "kcore.Broker(kcore_monitoring_address='127.0.0.1:0').start()",
        "kcore.monitoring.address needs prometheus-client: pip install 'kcore[metrics]'",
    ),
    ("uvicorn", "kcore.Broker().start().http", "broker.http needs uvicorn: pip install 'kcore[web]'"),
    ("starlette", "kcore.Cluster(1).start().http", "cluster.http needs starlette: pip install 'kcore[web]'"),
    (
        "kazoo",
        "kcore.Broker(store='zookeeper://h:1', broker_id=1).start()",
        "a store in ZooKeeper needs kazoo: pip install 'kcore[zookeeper]'",
    ),
]
ON_THE_COMMAND_LINE = [
    (
        "pyarrow",
        ["dump", "--format", "arrow", "-o", "-", PARTITION],
        "--format arrow needs pyarrow: pip install 'kcore[arrow]'",
    ),
    (
        "pyarrow",
        ["dump", "--format", "parquet", "-o", "x.parquet", PARTITION],
        "--format parquet needs pyarrow: pip install 'kcore[arrow]'",
    ),
    (
        "pyarrow",
        ["consume", "t", "--format", "parquet", "--output", "x.parquet"],
        "--format parquet needs pyarrow: pip install 'kcore[arrow]'",
    ),
    ("pyspark", ["spark", "verify", PARTITION], SPARK.format("pyspark")),
    ("pyarrow", ["spark", "compaction", PARTITION], SPARK.format("pyarrow")),
    ("pandas", ["spark", "verify", PARTITION], SPARK.format("pandas")),
    (
        "confluent_kafka",
        ["spark", "load", "--mode", "produce", "--bootstrap-servers", "localhost:1", "--topic", "t"],
        "--mode produce needs confluent-kafka: pip install 'kcore[spark]'",
    ),
    (
        "matplotlib",
        ["spark", "load", "--mode", "append", "--plot", "x.png", PARTITION],
        "--plot needs matplotlib: pip install 'kcore[plot]'",
    ),
    ("starlette", ["web", "."], "kcore web needs starlette: pip install 'kcore[web]'"),
    ("uvicorn", ["web", "."], "kcore web needs uvicorn: pip install 'kcore[web]'"),
    (
        "jinja2",
        ["serve", "--data", "/no/such/directory", "--http", "127.0.0.1:0"],
        "--http needs jinja2: pip install 'kcore[web]'",
    ),
    ("jinja2", ["web", "."], "kcore web needs jinja2: pip install 'kcore[web]'"),
]


def run_without(module: str, code: str) -> subprocess.CompletedProcess:
    code = f"import sys; sys.modules[{module!r}] = None; {code}"
    return subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=200)


@pytest.mark.parametrize(("module", "code", "message"), IN_PYTHON)
def test_a_library_call_without_its_package_names_the_package(module, code, message):
    done = run_without(module, f"import kcore; {code.format(partition=PARTITION)}")
    assert done.returncode == 1
    kind, _, message_shown = done.stderr.splitlines()[-1].partition(": ")
    assert (kind in ("ImportError", "ModuleNotFoundError"), message_shown) == (True, message)


@pytest.mark.parametrize(("module", "arguments", "message"), ON_THE_COMMAND_LINE)
def test_a_command_without_its_package_exits_2_and_names_the_package(module, arguments, message):
    done = run_without(module, f"from kcore.tools.main import main; sys.exit(main({arguments!r}))")
    assert (done.returncode, done.stdout, done.stderr) == (2, "", f"kcore: {message}\n")


def test_a_package_that_is_there_and_broken_keeps_its_own_words():
    error = missing_package("to_arrow()", "arrow", ImportError("libarrow.so.2600: cannot open shared object file"))
    assert str(error) == (
        "to_arrow(): libarrow.so.2600: cannot open shared object file; pip install 'kcore[arrow]' brings what it needs"
    )


def test_the_extras_bring_what_the_messages_say_and_spark_brings_no_numba():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    packages_of = {
        extra: {re.match(r"[\w-]+", package)[0] for package in packages} for extra, packages in extras.items()
    }
    assert (
        packages_of["arrow"] == {"pyarrow"}
        and packages_of["kernels"] == {"numba"}
        and packages_of["plot"] == {"matplotlib"}
    )
    assert packages_of["metrics"] == {"prometheus-client"}
    assert packages_of["web"] == {"starlette", "uvicorn", "jinja2"}
    assert packages_of["zookeeper"] == {"kazoo"}
    # kcore.spark imports no kernels (tests/test_layers.py).
    assert packages_of["spark"] == {"pyspark", "pyarrow", "pandas", "confluent-kafka"}
