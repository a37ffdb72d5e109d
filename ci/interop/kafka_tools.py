"""KafkaTools: Kafka's command-line tools in one JVM (KafkaTools.java), which takes some ten milliseconds for each."""

from __future__ import annotations

import subprocess
from pathlib import Path
from types import TracebackType

ROOT = Path(__file__).resolve().parents[2]


class KafkaTools:
    """A context manager; not thread-safe.  bootstrap_servers: which each tool is given.

    Raises RuntimeError for another exit status than expected, with what the tool has printed.
    """

    def __init__(self, jars: str, classes: str, bootstrap_servers: str) -> None:
        options = ["-Xmx256M", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]
        options += [f"-Dlog4j2.configurationFile={ROOT / 'ci' / 'interop' / 'log4j2.xml'}"]
        self._command = ["java", *options, "-cp", f"{jars}/*:{classes}", "KafkaTools"]
        self._server = ("--bootstrap-server", bootstrap_servers)

    def __enter__(self) -> KafkaTools:
        self._process = subprocess.Popen(self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(60)

    def run(self, tool: str, *words: str, status: int = 0) -> str:
        """What it prints.  tool: a class of org.apache.kafka.tools, or with its package."""
        assert self._process.stdin is not None and self._process.stdout is not None
        name = tool if tool.startswith("kafka.") else f"org.apache.kafka.tools.{tool}"
        # The subcommand of kafka-cluster comes first; the one of others may come after.
        words = (*words, *self._server) if tool == "ClusterTool" else (*self._server, *words)
        self._process.stdin.write("\t".join((name, *words)).encode() + b"\n")
        self._process.stdin.flush()
        found, size = map(int, self._process.stdout.readline().split())
        printed = self._process.stdout.read(size).decode()
        if found != status:
            raise RuntimeError(f"{tool} {' '.join(words)}: exit {found}\n{printed[:4000]}")
        return printed
