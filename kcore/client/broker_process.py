"""The process of this machine that serves an address or a data directory, and why it may not answer.

Read from Linux' /proc, without a question to the broker: a process that is stopped (SIGSTOP, Ctrl-Z, a debugger) keeps
its listeners, so the system goes on taking connections for it, and nobody answers.  Of another user's processes only
root can know the sockets, and elsewhere than on Linux there is no /proc: then None says that it is not known.
"""

from __future__ import annotations

import os
import re
import socket
import struct
from collections.abc import Iterator
from datetime import datetime
from typing import NamedTuple

from kcore.common.lock_holders import process_text, writer_of
from kcore.common.properties import read_properties

_LISTEN = "0A"  # st of /proc/net/tcp
#: Of /proc/PID/stat: stopped by a signal, and stopped by a debugger.
_DEBUGGED = "stopped by a debugger"
_STOPPED_STATES = {"T": "stopped by SIGSTOP or a terminal", "t": _DEBUGGED}
_LOCK_FILE = "/.lock"
#: An SQLite database with a write-ahead log has this file beside it, which its locks are on.
_SHARED_MEMORY = "-shm"
#: In every data directory: which broker of which cluster it belongs to.
_META_PROPERTIES = "meta.properties"


class BrokerProcess(NamedTuple):
    """data_dirs: those that it holds the lock of; several brokers may run in one process.  stores: the files of
    metadata stores that it has open."""

    pid: int
    data_dirs: tuple[str, ...]
    stores: tuple[str, ...] = ()

    def silence_reason(self) -> str | None:
        """Why no answer may come from it; None if that is not known."""
        locked = self.locked_reason()
        return self.stopped_reason() or (None if locked is None else f"its process {self.pid} runs, but {locked}")

    def locked_reason(self) -> str | None:
        """ "its store /data/cluster.db is locked by process 123 (sqlite3)": a broker in its start waits for that, and
        in every change of the cluster.  None if no other process has locked it, or that is not known."""
        for path in self.stores:
            if (writer := writer_of(path, path + _SHARED_MEMORY, besides=self.pid)) is not None:
                return f"its store {path} is locked by {writer}"
        return None

    def stopped_reason(self) -> str | None:
        """ "its process 4711 stands still, stopped by SIGSTOP or a terminal", and until when it certainly ran, which is
        when it last wrote a file directly in its data directories (a checkpoint); None if it runs or that is not
        known."""
        how = _stopped(self.pid)
        if how is None:
            return None
        written_s = max(map(_last_written_s, self.data_dirs), default=0.0)
        last = "" if written_s == 0 else f"; it ran until {datetime.fromtimestamp(written_s):%F %T} at least"
        return f"its process {self.pid} stands still, {how}{last}"

    def how_to_continue(self) -> str | None:
        """ "continue its process: `kill -CONT 4711`"; None if it runs or that is not known."""
        how = _stopped(self.pid)
        if how is None:
            return None
        command = f": `kill -CONT {self.pid}`" if how != _DEBUGGED else f" {self.pid} in the debugger"
        return f"continue its process{command}"


def process_of_address(host: str, port: int) -> BrokerProcess | None:
    """Whose listener takes the connections to host:port; None if it is not of this machine, or is not known."""
    inodes = _listeners(_addresses_here(host, port), port)
    if not inodes:
        return None
    for pid in _pids():
        targets = _open_files(pid)
        if any(f"socket:[{inode}]" in targets for inode in inodes):
            return _broker_process(pid, targets)
    return None


def process(pid: int) -> BrokerProcess:
    """The process with this id; without data directories where they are not known."""
    return _broker_process(pid, _open_files(pid))


def process_of_data_dir(data_dir: str) -> BrokerProcess | None:
    """That holds the directory's lock; None if none does, or it is not known."""
    lock = os.path.realpath(data_dir) + _LOCK_FILE
    for pid in _pids():
        targets = _open_files(pid)
        if lock in targets:
            return _broker_process(pid, targets)
    return None


def waiting_in_its_start(host: str, port: int) -> str | None:
    """Why nobody listens at an address of this machine: "process 123 (kcore), whose command line has the port 9092, may
    still be starting; its store ... is locked by ...".  None if there is no such process, or that is not known."""
    if not _addresses_here(host, port):
        return None
    words = re.compile(rb"(?<!\d)%d(?!\d)" % port)
    for pid in _pids():
        if words.search(_command_line(pid)) and (locked := process(pid).locked_reason()) is not None:
            return f"{process_text(pid)}, whose command line has the port {port}, may still be starting; {locked}"
    return None


def process_of_member(cluster_id: str | None, broker_id: int) -> BrokerProcess | None:
    """That holds the lock of a data directory of this broker, which need not be registered; None as above."""
    for pid in _pids():
        found = _broker_process(pid, _open_files(pid))
        own = tuple(path for path in found.data_dirs if _member_of_data_dir(path) == (cluster_id, str(broker_id)))
        if own:
            return found._replace(data_dirs=own)
    return None


def _broker_process(pid: int, targets: frozenset[str]) -> BrokerProcess:
    stores = sorted(target for target in targets if target + _SHARED_MEMORY in targets)
    return BrokerProcess(pid, _data_dirs(targets), tuple(stores))


def _member_of_data_dir(data_dir: str) -> tuple[str | None, str | None]:
    try:
        properties = read_properties(os.path.join(data_dir, _META_PROPERTIES))
    except (OSError, ValueError):
        return None, None
    return properties.get("cluster.id"), properties.get("broker.id", properties.get("node.id"))


def _stopped(pid: int) -> str | None:
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            # The name before the state is in parentheses, and may have some itself.
            state = file.read().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return None
    return _STOPPED_STATES.get(state)


def _last_written_s(data_dir: str) -> float:
    """0 where it cannot be known."""
    try:
        with os.scandir(data_dir) as entries:
            return max((entry.stat().st_mtime for entry in entries if entry.name.endswith("-checkpoint")), default=0.0)
    except OSError:
        return 0.0


def _data_dirs(targets: frozenset[str]) -> tuple[str, ...]:
    return tuple(sorted(target.removesuffix(_LOCK_FILE) for target in targets if target.endswith(_LOCK_FILE)))


def _pids() -> Iterator[int]:
    try:
        names = os.listdir("/proc")
    except OSError:
        return
    yield from (int(name) for name in names if name.isdecimal())


def _open_files(pid: int) -> frozenset[str]:
    """What its descriptors point to; empty where that may not be read."""
    directory = f"/proc/{pid}/fd"
    targets = set()
    try:
        for name in os.listdir(directory):
            try:
                targets.add(os.readlink(f"{directory}/{name}"))
            except OSError:
                pass  # closed meanwhile
    except OSError:
        pass
    return frozenset(targets)


def _command_line(pid: int) -> bytes:
    """Empty where that may not be read."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return file.read()
    except OSError:
        return b""


def _addresses_here(host: str, port: int) -> set[str]:
    """Those of the host that are of this machine; a name that is not known has none."""
    try:
        addresses = {str(info[4][0]) for info in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)}
    except OSError:
        return set()
    return {address for address in addresses if _is_of_this_machine(address)}


def _is_of_this_machine(address: str) -> bool:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((address, 0))
    except OSError:
        return False
    return True


def _listeners(addresses: set[str], port: int) -> set[str]:
    """The inodes of the sockets that listen there."""
    if not addresses:
        return set()
    # A listener of both families, as Java makes them, has an IPv4 address in the form of IPv6.
    mapped = [f"::ffff:{address}" for address in addresses if ":" not in address]
    wanted = {(_kernel_form(address), port) for address in (*addresses, *mapped, "0.0.0.0", "::")}
    inodes = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            with open(table, encoding="ascii") as file:
                lines = file.readlines()[1:]
        except OSError:
            continue
        for line in lines:
            fields = line.split()
            local, _, number = fields[1].partition(":")
            if fields[3] == _LISTEN and (local, int(number, 16)) in wanted:
                inodes.add(fields[9])
    return inodes


def _kernel_form(address: str) -> str:
    """As /proc/net/tcp writes it: each four bytes of the address as a number of the machine's byte order, in hex."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    packed = socket.inet_pton(family, address.partition("%")[0])
    return "".join(f"{word:08X}" for word in struct.unpack(f"={len(packed) // 4}I", packed))
