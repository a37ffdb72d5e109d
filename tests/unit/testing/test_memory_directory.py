"""Where the brokers of the fixtures have their files."""

import os
import shutil
import subprocess
import sys
import tempfile
import types

import pytest

import kcore
from kcore.testing import memory_directory
from kcore.testing.memory_directory import SHARED_MEMORY, settings_of_fixture
from tests.unit.testing.test_pytest_plugin import run_pytest

pytest_plugins = ["pytester"]


@pytest.fixture(autouse=True)
def no_place_is_named(monkeypatch):
    for name in ("TMPDIR", "TEMP", "TMP"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(tempfile, "tempdir", None)


def room_of(monkeypatch, free_bytes, free_memory=4 << 30):
    monkeypatch.setattr(memory_directory, "free_memory", lambda: free_memory)
    monkeypatch.setattr(
        memory_directory.os, "statvfs", lambda _: types.SimpleNamespace(f_bavail=free_bytes, f_frsize=1)
    )


def test_the_files_are_in_memory_where_there_is_room(monkeypatch, tmp_path):
    room_of(monkeypatch, 1 << 30)
    config = {"num.partitions": 2}
    assert settings_of_fixture(config, str(tmp_path)) == {**config, "kcore.temporary.dir": str(tmp_path)}
    assert config == {"num.partitions": 2}
    room_of(monkeypatch, (1 << 30) - 1)
    assert settings_of_fixture(config, str(tmp_path)) == config


def test_the_files_are_on_the_disk_where_there_is_no_such_directory_or_little_memory(monkeypatch, tmp_path):
    assert settings_of_fixture({}, str(tmp_path / "shm")) == {}
    room_of(monkeypatch, 1 << 40, free_memory=(4 << 30) - 1)
    assert settings_of_fixture({}, str(tmp_path)) == {}


@pytest.mark.parametrize("variable", ["TMPDIR", "TEMP", "TMP"])
def test_a_variable_that_names_the_place_of_temporary_files_counts(monkeypatch, tmp_path, variable):
    room_of(monkeypatch, 1 << 40)
    monkeypatch.setenv(variable, "/tmp")
    assert settings_of_fixture({}, str(tmp_path)) == {}


@pytest.mark.parametrize(("place", "is_the_programs"), [("/srv/tmp", True), ("/tmp", False), (None, False)])
def test_a_place_that_the_program_gives_to_tempfile_counts(monkeypatch, tmp_path, place, is_the_programs):
    """Python itself sets tempfile.tempdir to the system's directory, when it is first needed."""
    room_of(monkeypatch, 1 << 40)
    monkeypatch.setattr(tempfile, "tempdir", place)
    expected = {} if is_the_programs else {"kcore.temporary.dir": str(tmp_path)}
    assert settings_of_fixture({}, str(tmp_path)) == expected


@pytest.mark.parametrize("name", ["kcore.temporary.dir", "kcore_temporary_dir"])
def test_the_settings_of_the_fixture_count(monkeypatch, tmp_path, name):
    room_of(monkeypatch, 1 << 40)
    assert settings_of_fixture({name: "/tmp"}, str(tmp_path)) == {name: "/tmp"}


@pytest.mark.parametrize("make", [kcore.Broker, lambda **config: kcore.Cluster(2, **config)], ids=["broker", "cluster"])
def test_temporary_data_is_where_the_setting_says_and_is_gone_after_the_stop(tmp_path, monkeypatch, make):
    monkeypatch.chdir(tmp_path)
    with make(kcore_temporary_dir=".") as served:
        (directory,) = tmp_path.iterdir()
        assert directory.name.startswith("kcore-")
        place = served.data_dir if isinstance(served, kcore.Broker) else served.brokers[1].data_dir
        assert os.path.isabs(place)
        assert place.startswith(str(directory))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("make", [kcore.Broker, lambda **config: kcore.Cluster(2, **config)], ids=["broker", "cluster"])
def test_without_a_value_it_is_the_systems_and_not_the_current_directory(tmp_path, monkeypatch, make):
    monkeypatch.chdir(tmp_path)
    with make(kcore_temporary_dir="") as served:
        place = served.data_dir if isinstance(served, kcore.Broker) else served.brokers[1].data_dir
        assert place.startswith(tempfile.gettempdir() + "/kcore-")
    assert list(tmp_path.iterdir()) == []


def test_a_directory_that_is_not_there_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=str(tmp_path / "gone")):
        kcore.Broker(kcore_temporary_dir=tmp_path / "gone").start()


@pytest.mark.skipif(not memory_directory._has_room(SHARED_MEMORY), reason="this machine has no room in memory")
@pytest.mark.parametrize("fixture", ["kafka", "kafka_session", "kafka_cluster"])
def test_each_fixture_has_its_files_there(pytester, fixture):
    broker = "kafka_cluster.cluster.brokers[0]" if fixture == "kafka_cluster" else f"{fixture}.broker"
    pytester.makepyfile(f"""
        def test_place({fixture}):
            assert {broker}.data_dir.startswith("{SHARED_MEMORY}/kcore-")
    """)
    run_pytest(pytester).assert_outcomes(passed=1)


FULL = """
    import contextlib

    import pytest

    @pytest.mark.kafka({"orders": 1}, config={"log.index.interval.bytes": 0, "kcore.temporary.dir": "full"})
    def test_orders(kafka):
        kafka.broker.produce("orders", "a book")  # gives the .log and its indexes a page each
        with open("full/ballast", "wb", 0) as ballast, contextlib.suppress(OSError):
            while True:
                ballast.write(bytes(4096))
        assert len(list(kafka.broker.consume("orders"))) == 1
        kafka.broker.produce("orders", "a pen")  # the first entry of the indexes
        kafka.broker.produce("orders", bytes(10_000))
"""


def test_where_the_place_in_memory_is_full_a_test_fails_and_its_report_says_why(pytester):
    """It does not end the process by SIGBUS, as a store into a mapping of a file without a page would."""
    in_namespace = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c"]
    place = pytester.mkdir("full")
    mount = f"mount -t tmpfs -o size=2m tmpfs {place}"
    if shutil.which("unshare") is None or subprocess.run([*in_namespace, mount], check=False).returncode != 0:
        pytest.skip("this machine lets nobody mount a file system, so none can be made full")
    pytester.makepyfile(FULL)
    run = f"exec {sys.executable} -m pytest -p kcore.testing.pytest_plugin -p no:cacheprovider"
    result = pytester.run(*in_namespace, f"{mount} && {run}")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*DiskFull: *", "*- log of kafka -*", "*/full/kcore-*: No space left on device *"])
