"""How much memory this process may still take: of the machine's, and of what its control groups are allowed."""

import pytest

from kcore.testing.free_memory import free_memory

MIB = 1 << 20
MEMINFO = "MemTotal: 16777216 kB\nMemFree: 1024 kB\nMemAvailable: 12582912 kB\nHugePages_Total: 0\n"  # 16 and 12 GiB
MACHINE = 12 << 30


@pytest.fixture
def root(tmp_path):
    write(tmp_path, "proc/meminfo", MEMINFO)
    return tmp_path


def write(root, path, text):
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def group(root, path, limit, usage=0, cached=0):
    """Of version 2.  cached: without files in memory, which are in `usage` only."""
    write(root, f"sys/fs/cgroup/{path}/memory.max", f"{limit}\n")
    write(root, f"sys/fs/cgroup/{path}/memory.current", f"{usage}\n")
    half = cached // 2
    write(root, f"sys/fs/cgroup/{path}/memory.stat", f"anon 5\nactive_file {half}\ninactive_file {cached - half}\n")


def group_of_version_1(root, path, limit, usage=0, cached=0):
    place = f"sys/fs/cgroup/memory/{path}"
    write(root, f"{place}/memory.limit_in_bytes", f"{limit}\n")
    write(root, f"{place}/memory.usage_in_bytes", f"{usage}\n")
    stat = f"active_file 1\ninactive_file 1\ntotal_active_file 0\ntotal_inactive_file {cached}\n"
    write(root, f"{place}/memory.stat", stat)


def test_without_control_groups_it_is_the_machines(root):
    assert free_memory(str(root)) == MACHINE


def test_a_container_has_what_its_limit_leaves_but_for_what_is_only_a_cache(root):
    write(root, "proc/self/cgroup", "0::/\n")
    group(root, "", limit=2048 * MIB, usage=900 * MIB, cached=500 * MIB)
    assert free_memory(str(root)) == (2048 - 900 + 500) * MIB


def test_the_tightest_of_the_groups_around_a_process_counts(root):
    write(root, "proc/self/cgroup", "1:name=systemd:/x\n0::/user.slice/run:1.scope\n")
    group(root, "user.slice/run:1.scope", limit="max", usage=10 * MIB)
    group(root, "user.slice", limit=3000 * MIB, usage=1000 * MIB)
    assert free_memory(str(root)) == 2000 * MIB


@pytest.mark.parametrize("path", ["/docker/5f3a", "/"])
def test_a_limit_of_version_1_counts_too(root, path):
    """In a container the path may be the one outside of it, where there is no such directory inside."""
    write(root, "proc/self/cgroup", f"3:cpu:/\n2:memory:{path}\n0::/\n")
    group_of_version_1(root, "", limit=1024 * MIB, usage=300 * MIB, cached=100 * MIB)
    assert free_memory(str(root)) == (1024 - 300 + 100) * MIB


def test_what_version_1_says_where_there_is_no_limit_is_none(root):
    write(root, "proc/self/cgroup", "2:memory:/\n")
    group_of_version_1(root, "", limit=9223372036854771712, usage=300 * MIB)
    assert free_memory(str(root)) == MACHINE


def test_a_system_that_does_not_say_it_is_an_error(tmp_path):
    with pytest.raises(OSError, match="meminfo"):
        free_memory(str(tmp_path))
