"""`kcore serve --brokers N`: a cluster of N brokers on this machine, each a `kcore serve` process of its own."""

from __future__ import annotations

import os
import queue
import re
import shlex
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from kcore.client.admin_client import AdminClient
from kcore.client.broker_process import process
from kcore.client.first_answer import first_answer
from kcore.client.monitor import store_lock
from kcore.common.text import bytes_of, counted
from kcore.common.time import SYSTEM_TIME, Time
from kcore.errors import KafkaError
from kcore.log import meta_properties
from kcore.log.log_file_names import parse_partition_directory, parse_segment_file
from kcore.server.broker_identity import check_is_no_file
from kcore.server.cluster_settings import cluster_settings, store_address
from kcore.server.config.listeners import authority, bracketed, host_and_port
from kcore.tools import config_file
from kcore.tools.bootstrap import default_bootstrap
from kcore.tools.command_line import DAMAGE, OK, USAGE, Arguments, UsageError, addresses
from kcore.tools.hints import absolute_script, client_hint, script, short
from kcore.tools.http_option import page_beside
from kcore.tools.serve_settings import given_settings

#: How long a broker process may be silent until the others take it for dead: shorter than Kafka's 18 s, for who kills
#: one to see what happens.
SESSION_TIMEOUT_MS = 6000
#: How long a server of ZooKeeper may take to answer at the start: Kafka's default.  The session may be shorter.
CONNECTION_TIMEOUT_MS = 18_000
#: How long the brokers may take to start, and then to know each other.
_START_S = 120
_POLL_S = 0.1
#: Before another broker is asked too which one is the controller.
_HEAD_START_S = 0.5
#: Signals this long after the first are the same request: coreutils' timeout signals a process and then its group.
_SAME_SIGNAL_MS = 1000
#: A broker that takes longer to stop is named.
_LONG_STOP_S = 5
_LAST_PORT = 65535
#: The line of a broker that serves: the address for clients of this machine, and the advertised one if it differs.
_SERVING = re.compile(r"kcore: serving .* on ([^\s,]+)(?:, advertised as ([^\s,]+))?\n?")
#: Of a broker's log, printed when it has ended.
_LAST_LINES = 5
#: With less on the disk of the logs they may not have what a broker said last.
_LITTLE_ROOM = 1 << 16


class _Event(NamedTuple):
    """A line that a broker printed, None at the end of its output; broker_id None: a signal."""

    broker_id: int | None
    line: str | None = None


class _StopRequested(Exception):
    """A signal has arrived."""


class _StartFailed(Exception):
    """A broker has ended before all of them served, or they do not find each other."""


def run(args: Arguments) -> int:
    """Serve until SIGINT, SIGTERM or, unless nohup has it ignored, SIGHUP; or until every broker has ended by itself.

    0 after a clean stop of all brokers that still ran, 1 if none of them ran any more or one did not stop cleanly,
    2 when the cluster cannot start.  Raises UsageError, and OSError for a configuration file.
    """
    cluster = _ServedCluster(args)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        # nohup has SIGHUP ignored, for a process that is to outlive its terminal.
        if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, cluster.request_stop)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})  # whoever started this process may have it blocked
    try:
        cluster.start()
        print("\n".join(cluster.hints() if args.hints else cluster.summary()), flush=True)
        cluster.watch()
    except _StopRequested:
        return OK if cluster.stop() else DAMAGE
    except _StartFailed as error:
        print(f"kcore serve: {error}", file=sys.stderr, flush=True)
        cluster.stop()
        return USAGE
    except BaseException:
        cluster.stop()
        raise
    print("kcore: none of the brokers that this command has started runs any more", flush=True)
    return DAMAGE


def _has_logs(path: str) -> bool:
    """Whether it is a partition's directory, or holds some: of a directory that no broker has had yet, too."""
    names = os.listdir(path) if os.path.isdir(path) else []
    return any(
        parse_segment_file(name) or (parse_partition_directory(name) and os.path.isdir(os.path.join(path, name)))
        for name in names
    )


def _check_last_port(option: str, first: int, brokers: int) -> None:
    """Raises UsageError."""
    if first + brokers - 1 > _LAST_PORT:
        raise UsageError(
            f"{option}: {counted(brokers, 'broker')} take the ports from it on, and {_LAST_PORT} is the last"
        )


class _ServedCluster:
    """The broker processes.  For one thread, but for request_stop()."""

    def __init__(self, args: Arguments, *, time: Time = SYSTEM_TIME) -> None:
        """Raises UsageError, NotADirectoryError."""
        given = {text.partition("=")[0].strip() for text in args.overrides}
        given |= set(given_settings(args))
        for name in ("broker.id", "node.id", "listeners", "advertised.listeners", "log.dir", "log.dirs"):
            if name in given:
                raise UsageError(f"{name} is not the same for all brokers: --brokers sets it for each")
        if "kcore.monitoring.address" in given:
            raise UsageError("kcore.monitoring.address is not the same for all brokers: give --monitoring HOST:PORT")
        self._monitoring = host_and_port(args.monitoring or "")
        if args.monitoring is not None and not (self._monitoring and self._monitoring[1]):
            raise UsageError(f"--monitoring {args.monitoring}: expected HOST:PORT, and with --brokers no port 0")
        if args.port < 0:
            raise UsageError(f"--port {args.port}: expected a port, or 0 for free ones")
        _check_last_port(f"--port {args.port}", args.port, args.brokers)
        if self._monitoring is not None:
            _check_last_port(f"--monitoring {args.monitoring}", self._monitoring[1], args.brokers)
        if args.id is not None:
            raise UsageError("--brokers gives the ids 0, 1, ...: leave out --id")
        if not args.data:
            raise UsageError("which directory? Give --data DIR: broker N has DIR/N")
        check_is_no_file(args.data)
        if meta_properties.read(args.data) is not None or _has_logs(args.data):
            other = shlex.quote(f"{args.data.rstrip('/')}-cluster")
            raise UsageError(f"{args.data} is one broker's: give a cluster a directory of its own, as --data {other}")
        settings = {
            **cluster_settings(args.brokers),
            "zookeeper.session.timeout.ms": SESSION_TIMEOUT_MS,
            "zookeeper.connection.timeout.ms": CONNECTION_TIMEOUT_MS,
        }
        self._args = args
        self._time = time
        self._first_signal_ms: float | None = None
        self._overrides = [f"{name}={value}" for name, value in settings.items() if name not in given]
        self._overrides += args.overrides
        self._store = args.store or store_address(args.data)
        self._page = None if args.http is None else page_beside(args.http)
        self._events: queue.SimpleQueue[_Event] = queue.SimpleQueue()
        self._running: dict[int, subprocess.Popen[str]] = {}
        self._addresses: dict[int, str] = {}
        self._advertised: dict[int, str] = {}
        #: Where in a broker's log the lines of this start begin.
        self._log_positions: dict[int, int] = {}
        self._has_ended_uncleanly = False
        self._continued: set[int] = set()

    def request_stop(self, *_: object) -> None:
        """A signal handler."""
        now_ms = self._time.hi_res_clock_ms()
        if self._first_signal_ms is None:
            self._first_signal_ms = now_ms
        elif now_ms - self._first_signal_ms < _SAME_SIGNAL_MS:
            return
        self._events.put(_Event(None))

    # -- life -------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Return when all brokers serve, know each other and have a controller.  Raises _StopRequested, _StartFailed,
        OSError."""
        os.makedirs(self._args.data, exist_ok=True)
        deadline_ms = SYSTEM_TIME.hi_res_clock_ms() + _START_S * 1000
        for number in range(self._args.brokers):
            child = self._start_broker(number)
            self._running[number] = child
            threading.Thread(target=self._read, args=(number, child), daemon=True).start()
            while self._heed_event(0, deadline_ms):
                pass
        while len(self._addresses) < self._args.brokers or not self._agree():
            self._heed_event(_POLL_S, deadline_ms)
        if self._page is not None:
            self._page.start(",".join(self._addresses.values()))

    def _heed_event(self, timeout_s: float, deadline_ms: float) -> bool:
        """Whether there was an event of a start within the timeout.  Raises _StopRequested, _StartFailed."""
        event = self._next_event(timeout_s)
        if event is not None and event.line is None:
            raise _StartFailed(self._how_it_ended(event))
        if SYSTEM_TIME.hi_res_clock_ms() > deadline_ms:
            raise _StartFailed(f"the brokers do not know each other after {_START_S} s")
        return event is not None

    def watch(self) -> None:
        """Say of each broker that ends how it did; return when none runs.  Raises _StopRequested."""
        while self._running:
            event = self._next_event(None)
            if event is not None and event.line is None:
                print(f"kcore: {self._how_it_ended(event)}", flush=True)
                if self._running:
                    print("  the others go on; this starts it again, in another terminal:")
                    print(f"  {shlex.join(self._command(event.broker_id or 0, is_hint=True))}", flush=True)

    def stop(self) -> bool:
        """Stop the brokers, the controller last: it elects the leaders that replace the others.  All at the same time
        where a program has the store locked: no other leader can be elected.  A later signal kills those that still
        run.  A process that stands still is continued, for it to stop too; one that stands still afterwards, as a
        debugger keeps it, is killed.  Returns whether all have stopped cleanly."""
        if self._page is not None:
            self._page.stop()
        for number in self._running:
            self._stands_still(number)
        controller, self._has_ended_uncleanly = self._controller(), False
        lock = self._store_lock()
        if lock is not None:
            print(f"kcore: {lock}", "kcore: the brokers stop at the same time", sep="\n", flush=True)
            for child in self._running.values():
                child.terminate()
        for number in sorted(self._running, key=lambda number: number == controller):
            if number in self._running:
                if lock is None:
                    self._running[number].terminate()
                self._wait_for_end(number)
        return not self._has_ended_uncleanly

    def _store_lock(self) -> str | None:
        """As the first broker says that knows one."""
        locks = (store_lock(process(child.pid)) for child in self._running.values())
        return next((lock for lock in locks if lock is not None), None)

    def _stands_still(self, number: int) -> bool:
        """If it does, it is continued; killed if that has not helped before."""
        child = self._running[number]
        reason = process(child.pid).stopped_reason()
        if reason is None:
            return False
        if number in self._continued:
            print(f"kcore: broker {number}: {reason}: it is killed", flush=True)
            child.kill()
        else:
            self._continued.add(number)
            print(f"kcore: broker {number}: {reason}: it is continued, to stop", flush=True)
            child.send_signal(signal.SIGCONT)
        return True

    def _wait_for_end(self, number: int) -> None:
        is_named = False
        while number in self._running:
            try:
                event = self._next_event(_LONG_STOP_S)
            except _StopRequested:
                for child in self._running.values():
                    child.kill()
                continue
            if event is None:
                if not self._stands_still(number) and not is_named:
                    is_named = True
                    notice = f"waiting for broker {number} to stop; another Ctrl-C kills what still runs"
                    print(f"kcore: {notice}", flush=True)
            elif event.line is None:
                how = self._how_it_ended(event)
                if event.broker_id != number or self._has_ended_uncleanly:
                    print(f"kcore: {how}", flush=True)
                else:
                    print(f"kcore: broker {number} stopped", flush=True)

    # -- the processes ----------------------------------------------------------------------------------

    def _start_broker(self, number: int) -> subprocess.Popen[str]:
        """On the main thread: the broker ends with the thread that starts it."""
        # It inherits the mask: a SIGTERM that comes before it can serve waits until it can stop cleanly.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        try:
            with open(self._log_file(number), "ab") as log:
                self._log_positions[number] = log.tell()
                # In a process group of its own: a Ctrl-C is for this process, which stops one broker after the other.
                return subprocess.Popen(
                    self._command(number),
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    text=True,
                    process_group=0,
                    # What it needs is on its command line: with `brokers` of the file it would be a cluster of its own.
                    env={**os.environ, config_file.VARIABLE: os.devnull},
                )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    def _command(self, number: int, *, is_hint: bool = False) -> list[str]:
        """is_hint: as one would type it, in whatever directory that terminal is."""
        args, data_dir, store, config = self._args, self._data_dir(number), self._store, self._args.config
        command = [sys.executable, "-m", "kcore", "serve", "--parent", str(os.getpid())]
        if is_hint:
            command = [absolute_script("kcore"), "serve"]
            data_dir, config = os.path.abspath(data_dir), config and os.path.abspath(config)
            scheme, _, path = store.partition(":")
            store = f"{scheme}:{os.path.abspath(path)}" if scheme == "sqlite" else store
        command += ["--id", str(number), "--data", data_dir, "--store", store, "--port", str(self._port(number))]
        command += ["--host", args.host] if args.host is not None else []
        command += ["--config", config] if config else []
        command += ["--environment"] if args.environment else []
        if self._monitoring is not None:
            host, port = self._monitoring
            command += ["--monitoring", bracketed(host, port + number)]
        for override in self._overrides:
            command += ["-o", override]
        return command

    def _port(self, number: int) -> int:
        if number in self._addresses:
            return addresses(self._addresses[number])[0][1]
        first: int = self._args.port
        return first and first + number

    def _data_dir(self, number: int) -> str:
        return os.path.join(self._args.data, str(number))

    def _log_file(self, number: int) -> str:
        return os.path.join(self._args.data, f"broker-{number}.txt")

    def _read(self, number: int, child: subprocess.Popen[str]) -> None:
        """On a thread of its own: the process's lines as events."""
        assert child.stdout is not None
        for line in child.stdout:
            self._events.put(_Event(number, line))
        child.wait()
        self._events.put(_Event(number))

    def _next_event(self, timeout_s: float | None) -> _Event | None:
        """None after the timeout.  Raises _StopRequested."""
        try:
            event = self._events.get(timeout=timeout_s)
        except queue.Empty:
            return None
        if event.broker_id is None:
            raise _StopRequested
        if served := _SERVING.fullmatch(event.line or ""):
            self._addresses[event.broker_id] = served[1]
            self._advertised[event.broker_id] = served[2] or served[1]
        return event

    def _how_it_ended(self, event: _Event) -> str:
        """Takes the broker off the running ones."""
        number = event.broker_id
        assert number is not None
        status = self._running.pop(number).returncode
        if status == 0:
            return f"broker {number} was stopped"
        self._has_ended_uncleanly = True
        if status < 0:
            return f"broker {number} has ended by {signal.Signals(-status).name}"
        path = self._log_file(number)
        with open(path, "rb") as log:
            log.seek(self._log_positions.get(number, 0))
            last = log.read().decode(errors="replace").splitlines()[-_LAST_LINES:]
        disk = os.statvfs(self._args.data)
        free = disk.f_bavail * disk.f_frsize
        if free < _LITTLE_ROOM:
            last.append(f"(the disk is full, {bytes_of(free)} free: the log may lack its end)")
        log_end = f"the end of {short(path)}:" if last else f"{short(path)} has no line of this start"
        return "\n  ".join([f"broker {number} has ended with status {status}; {log_end}", *last])

    # -- what the cluster knows -------------------------------------------------------------------------

    def _agree(self) -> bool:
        """Whether each broker knows all of them, and a controller among them.  All are asked at the same time."""
        with ThreadPoolExecutor(len(self._running)) as threads:
            return None not in threads.map(self._controller_by, list(self._running))

    def _controller_by(self, number: int) -> int | None:
        """The controller's id as one broker has it; None before it knows all running brokers and a controller."""
        try:
            with AdminClient(addresses(self._addresses[number]), timeout_ms=5000) as admin:
                cluster = admin.describe_cluster([])
        except (OSError, KafkaError):
            return None
        knows_all = self._running.keys() <= cluster.brokers.keys()
        return cluster.controller_id if knows_all and cluster.controller_id in cluster.brokers else None

    def _controller(self) -> int | None:
        """As the first broker has it that knows one."""

        def ask(number: int) -> int:
            if (controller := self._controller_by(number)) is None:
                raise ConnectionError  # the next one is asked
            return controller

        started = [number for number in self._running if number in self._addresses]
        try:
            return first_answer(started, ask, head_start_s=_HEAD_START_S).answer if started else None
        except ConnectionError:
            return None

    # -- what is printed --------------------------------------------------------------------------------

    def summary(self) -> list[str]:
        servers = ",".join(self._addresses[number] for number in sorted(self._addresses))
        advertised = ",".join(self._advertised[number] for number in sorted(self._advertised))
        advertised_as = f", advertised as {advertised}" if advertised != servers else ""
        monitoring = []
        if self._monitoring is not None:
            first = authority(*self._monitoring)
            monitoring = [f"  http://{first}/metrics, /healthz, /readyz; the others: the next ports"]
        return [
            f"kcore: serving {self._args.data} on {servers}{advertised_as}",
            *monitoring,
            *([] if self._page is None else [f"  {self._page.url}"]),
            f"{counted(self._args.brokers, 'broker')}, broker {self._controller()} is the controller; "
            f"their logs are {short(self._log_file(0))} and so on",
        ]

    def hints(self) -> list[str]:
        """Commands for who sees a cluster for the first time."""
        kcore, first = shlex.quote(script("kcore")), self._addresses[0]
        bootstrap = "" if first == default_bootstrap() else f" --bootstrap {first}"
        lines = [
            client_hint(first),
            f"{kcore} topics create orders --partitions 3{bootstrap}",
            f"{kcore} topics describe orders{bootstrap}  # leader, replicas and ISR of each partition",
            f"{kcore} cluster{bootstrap}  # the brokers, what each leads, what is wrong",
        ]
        if self._args.brokers > 1:
            victim = max(self._running)
            lines += [
                f"kill -9 {self._running[victim].pid}  # broker {victim}; then others lead: look again",
                f"{kcore} explain isr orders 0{bootstrap}  # the leader says who is in sync and why",
            ]
        hints = [f"  {line}" for line in lines]
        return [*self.summary(), "Ctrl-C stops all of them; next, in another terminal:", *hints]
