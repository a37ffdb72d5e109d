"""A real Apache Kafka beside us: one broker (KRaft, combined) from Maven's jars, on 127.0.0.1 only."""

from __future__ import annotations

import base64
import os
import socket
import struct
import subprocess
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

ROOT = Path(__file__).resolve().parents[2]

# What Kafka's start script gives a broker, so that nobody can say we throttled it.
JVM = ["-Xms1G", "-Xmx1G", "-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20", "-Djava.awt.headless=true"]
JVM += ["-XX:InitiatingHeapOccupancyPercent=35", "-XX:+ExplicitGCInvokesConcurrent", "-XX:MaxInlineLevel=15"]


class Unavailable(Exception):
    """This machine lacks Maven or Java."""


def jars(of: str = "kafka") -> Path:
    """The folder with Kafka's jars, or with those of Spark's connector ("spark"), fetched at the first call.  Raises
    Unavailable."""
    result = subprocess.run(
        ["bash", str(ROOT / "ci" / "kafka_jars.sh"), of], stdout=subprocess.PIPE, text=True, check=False
    )
    if result.returncode == 3:
        raise Unavailable("a real Kafka needs Maven and a JDK")
    result.check_returncode()
    return Path(result.stdout.strip())


def connector_jars() -> list[str]:
    """What spark.jars has to name for format("kafka").  Raises Unavailable."""
    return sorted(str(jar) for jar in jars("spark").glob("*.jar"))


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def answers(port: int) -> bool:
    """Whether a broker answers ApiVersions and names itself in Metadata."""
    try:
        with socket.create_connection(("127.0.0.1", port), 1) as connection:
            connection.settimeout(2)
            _call(connection, 18, 0, b"")
            metadata = _call(connection, 3, 1, struct.pack(">i", 0))
            return bool(struct.unpack_from(">i", metadata, 4)[0])
    except OSError:
        return False


def _call(connection: socket.socket, api_key: int, version: int, body: bytes) -> bytes:
    request = struct.pack(">hhih", api_key, version, 1, -1) + body
    connection.sendall(struct.pack(">i", len(request)) + request)
    return _exactly(connection, struct.unpack(">i", _exactly(connection, 4))[0])


def _exactly(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = connection.recv(size - len(data))
        if not more:
            raise OSError("closed")
        data += more
    return data


class RealKafka:
    """A context manager: the broker runs inside the with block, its state in `directory`.

    One of a cluster has a node_id, all voters' controller ports by node id, and the cluster's id; alone it needs none.
    """

    def __init__(
        self,
        directory: Path,
        *,
        node_id: int = 1,
        voters: Mapping[int, int] | None = None,
        cluster_id: str | None = None,
        **config: str | int,
    ) -> None:
        self.directory = directory
        self.port = free_port()
        self.config = config
        self.process: subprocess.Popen[bytes] | None = None
        self._node_id = node_id
        self._voters = {node_id: free_port()} if voters is None else voters
        self._cluster_id = cluster_id or self.new_cluster_id()

    @staticmethod
    def new_cluster_id() -> str:
        # It may begin with a "-", which -t would take for the next option.
        return base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")

    @property
    def bootstrap_servers(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    @property
    def is_running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def __enter__(self) -> RealKafka:
        self.launch()
        self.wait_until_it_answers()
        return self

    def launch(self) -> None:
        """Start the process, with the state that it left in `directory`."""
        properties = self.directory / "server.properties"
        if not properties.exists():
            self.directory.mkdir(parents=True, exist_ok=True)
            properties.write_text("".join(f"{name}={value}\n" for name, value in self._settings().items()))
            cluster_id = f"--cluster-id={self._cluster_id}"
            self._java("kafka.tools.StorageTool", "format", cluster_id, "-c", str(properties)).wait()
        self.process = self._java("kafka.Kafka", str(properties))

    def _settings(self) -> dict[str, object]:
        controller = self._voters[self._node_id]
        return {
            "process.roles": "broker,controller",
            "node.id": self._node_id,
            "controller.quorum.voters": ",".join(f"{voter}@127.0.0.1:{port}" for voter, port in self._voters.items()),
            "listeners": f"PLAINTEXT://127.0.0.1:{self.port},CONTROLLER://127.0.0.1:{controller}",
            "advertised.listeners": f"PLAINTEXT://127.0.0.1:{self.port}",
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
            "log.dirs": self.directory / "data",
            "offsets.topic.replication.factor": 1,
            "offsets.topic.num.partitions": 3,
            "transaction.state.log.replication.factor": 1,
            "transaction.state.log.min.isr": 1,
            "group.initial.rebalance.delay.ms": 0,
        } | {name.replace("_", "."): value for name, value in self.config.items()}

    def wait_until_it_answers(self) -> None:
        """Raises RuntimeError, with what it printed, if it ends or is silent; then it has been ended."""
        deadline = time.monotonic() + 90
        while not answers(self.port):
            if not self.is_running or time.monotonic() > deadline:
                self.terminate()
                raise RuntimeError(f"Kafka did not start:\n{(self.directory / 'out').read_text()}")
            time.sleep(0.05)

    def tool(self, main: str, *arguments: str) -> None:
        """Run one of Kafka's programs to its end.  Raises RuntimeError."""
        if self._java(main, *arguments).wait():
            raise RuntimeError(f"{main} {' '.join(arguments)}:\n{(self.directory / 'out').read_text()[-4000:]}")

    def _java(self, main: str, *arguments: str) -> subprocess.Popen[bytes]:
        log4j = ROOT / "ci" / "interop" / "log4j2.xml"
        command = ["java", *JVM, f"-Dlog4j2.configurationFile={log4j}", f"-Dkafka.logs.dir={self.directory}"]
        with open(self.directory / "out", "ab") as out:
            return subprocess.Popen(
                [*command, "-cp", f"{jars()}/*", main, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                env=os.environ | {"LC_ALL": "C"},
            )

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.terminate()

    def terminate(self) -> None:
        """Stop it cleanly; kill it after a minute.  Nothing if it does not run."""
        if self.process is None or not self.is_running:
            return
        self.process.terminate()
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
