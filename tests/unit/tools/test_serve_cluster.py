"""`kcore serve --brokers N`: starts, watches and stops the processes of a cluster."""

import itertools
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from kcore.log import directory_lock, meta_properties
from kcore.server.broker_identity import STORE_FILE_NAME
from kcore.testing import MockTime
from kcore.tools import serve_cluster
from kcore.tools.main import main
from tests.locked_store import locked_by_a_process

DEADLINE_S = 120


@pytest.fixture
def serve(tmp_path):
    processes = []

    def start(*arguments):
        command = [sys.executable, "-m", "kcore", "serve", "--data", str(tmp_path / "c"), "--port", "0", *arguments]
        processes.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
        return processes[-1]

    yield start
    for process in processes:
        process.terminate()
        process.communicate(timeout=DEADLINE_S)


def lines_until(process, text):
    lines = []
    for line in process.stdout:
        lines.append(line)
        if text in line:
            return lines
    raise AssertionError(f"no {text!r} in {lines}: {process.stderr.read()}")


def test_the_line_with_the_addresses_has_those_that_clients_are_told_where_these_are_others(serve):
    process = serve("--brokers", "2", "--host", "0.0.0.0")
    (line,) = (line for line in lines_until(process, "is the controller") if "serving" in line)
    ports = re.findall(r"127\.0\.0\.1:(\d+)", line)
    assert len(ports) == 2
    name = socket.gethostname()
    assert line.endswith(f", advertised as {name}:{ports[0]},{name}:{ports[1]}\n")


@pytest.mark.timeout(5 * DEADLINE_S)
def test_a_killed_broker_is_reported_with_the_command_that_starts_it_and_ctrl_c_stops_the_others(serve, tmp_path):
    # A session that outlives pauses of the machine.
    process = serve("--brokers", "2", "--hints", "-o", "zookeeper.session.timeout.ms=20000")
    hints = lines_until(process, "explain isr")
    (servers,) = re.findall(r"kcore: serving .* on (\S+)$", hints[0], re.M)
    first, _ = servers.split(",")
    commands = ("kcore topics", "kcore cluster", "kcore explain")
    assert all(first in line for line in hints if any(command in line for command in commands))
    assert main(["cluster", "--bootstrap", first]) == 0
    (explain,) = re.findall(r"^  (\S*kcore explain isr .*?)  # ", "".join(hints), re.M)
    assert main(["topics", "create", "orders", "--bootstrap", first]) == 0
    # With this Python's kcore, which need not be installed as a script.
    explain = re.sub(r"\S*kcore explain", f"{shlex.quote(sys.executable)} -m kcore explain", explain)
    deadline, shown = time.monotonic() + DEADLINE_S, ""
    while "  ISR [0, 1]: " not in shown:
        assert time.monotonic() < deadline, shown
        shown = subprocess.run(["sh", "-c", explain], capture_output=True, text=True, timeout=DEADLINE_S).stdout
    (pid,) = re.findall(r"kill -9 (\d+)  # broker 1", "".join(hints))
    os.kill(int(pid), signal.SIGKILL)
    report = lines_until(process, "--id 1")
    assert "broker 1 has ended by SIGKILL" in report[0]
    assert f"--store sqlite:{tmp_path / 'c' / STORE_FILE_NAME}" in report[-1]
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=DEADLINE_S)
    assert (process.returncode, out, err) == (0, "kcore: broker 0 stopped\n", "")


@pytest.mark.timeout(5 * DEADLINE_S)
def test_the_number_of_brokers_may_be_in_the_configuration_file_which_is_not_for_each_broker(
    serve, tmp_path, monkeypatch
):
    (tmp_path / "config.toml").write_text("[serve]\nbrokers = 2\nhints = true")
    monkeypatch.setenv("KCORE_CONFIG", str(tmp_path / "config.toml"))
    lines_until(serve(), "2 brokers, broker ")
    log = tmp_path / "c" / "broker-0.txt"
    assert "kcore serve:" not in log.read_text()


def has_ended(data_dir):
    """Wait until no process holds the directory's lock any more; whether that came to pass."""
    deadline = time.monotonic() + DEADLINE_S
    while directory_lock.is_held(str(data_dir)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not directory_lock.is_held(str(data_dir))


@pytest.mark.timeout(5 * DEADLINE_S)
def test_the_brokers_stop_when_the_process_that_has_started_them_is_killed(serve, tmp_path):
    process = serve("--brokers", "2")
    lines_until(process, "the controller")
    process.kill()
    for number in range(2):
        log = tmp_path / "c" / f"broker-{number}.txt"
        assert has_ended(tmp_path / "c" / str(number)), log.read_text()
        assert (tmp_path / "c" / str(number) / ".kafka_cleanshutdown").exists(), log.read_text()
        assert "Traceback" not in log.read_text()


def ignores_hangup(pid):
    (mask,) = re.findall(r"^SigIgn:\s*(\w+)$", Path(f"/proc/{pid}/status").read_text(), re.M)
    return bool(int(mask, 16) & 1 << signal.SIGHUP - 1)


@pytest.mark.timeout(5 * DEADLINE_S)
def test_under_nohup_a_hangup_stops_nothing_and_the_end_of_the_starter_stops_the_brokers(tmp_path):
    data = tmp_path / "c"
    command = [sys.executable, "-m", "kcore", "serve", "--data", str(data), "--port", "0", "--brokers", "2"]
    # nohup without its output file.
    process = subprocess.Popen(
        ["sh", "-c", "trap '' HUP; exec \"$@\"", "sh", *command, "--hints"], stdout=subprocess.PIPE, text=True
    )
    try:
        hints = "".join(lines_until(process, "explain isr"))
        assert ignores_hangup(process.pid)
        process.send_signal(signal.SIGHUP)
        (pid,) = re.findall(r"kill -9 (\d+)  # broker 1", hints)
        os.kill(int(pid), signal.SIGHUP)
        time.sleep(0.5)  # time to stop in, if it wants to
        assert directory_lock.is_held(str(data / "1")) and process.poll() is None
        (server,) = re.findall(r"serving .* on ([^,\s]+)", hints)
        assert main(["cluster", "--bootstrap", server]) == 0
    finally:
        process.kill()
        process.wait(DEADLINE_S)
        process.stdout.close()
    for number in range(2):
        log = (data / f"broker-{number}.txt").read_text()
        assert has_ended(data / str(number)), log
        assert (data / str(number) / ".kafka_cleanshutdown").exists(), log


@pytest.mark.timeout(5 * DEADLINE_S)
def test_a_broker_whose_starter_is_gone_before_it_knows_stops_at_once(tmp_path):
    command = [sys.executable, "-m", "kcore", "serve", "--data", str(tmp_path), "--port", "0", "--parent", "1"]
    process = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert process.returncode == 0 and "kcore: stopped" in process.stdout


@pytest.mark.timeout(5 * DEADLINE_S)
@pytest.mark.parametrize("delay_s", [0, 0.3, 1, 2])
def test_a_stop_while_the_brokers_start_is_a_clean_one(serve, tmp_path, delay_s):
    process = serve("--brokers", "2")
    while not (tmp_path / "c" / "broker-1.txt").exists():  # made before the broker is started
        assert process.poll() is None
        time.sleep(0.005)
    time.sleep(delay_s)  # whenever it comes the result is the same
    process.terminate()
    out, err = process.communicate(timeout=DEADLINE_S)
    assert (process.returncode, err) == (0, ""), (out, [path.read_text() for path in tmp_path.glob("c/*.txt")])


@pytest.mark.timeout(5 * DEADLINE_S)
def test_a_cluster_stops_also_where_whoever_started_it_has_the_signal_blocked(serve, tmp_path):
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        process = serve("--brokers", "1")
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    while not (tmp_path / "c" / "broker-0.txt").exists():
        assert process.poll() is None
        time.sleep(0.005)
    process.terminate()
    _, err = process.communicate(timeout=DEADLINE_S)
    assert (process.returncode, err) == (0, "")


@pytest.mark.timeout(5 * DEADLINE_S)
def test_brokers_that_stand_still_are_continued_and_stop_with_the_others(serve):
    process = serve("--brokers", "3", "--hints")
    hints = "".join(lines_until(process, "explain isr"))
    (victim,) = re.findall(r"kill -9 (\d+)  # broker 2", hints)
    brokers = [victim, next(pid for pid in children_of(process.pid) if pid != victim)]
    for pid in brokers:
        os.kill(int(pid), signal.SIGSTOP)
    process.terminate()
    out, err = process.communicate(timeout=DEADLINE_S)
    assert (process.returncode, err) == (0, ""), out
    for pid in brokers:
        assert re.search(
            rf"broker \d: its process {pid} stands still, stopped by SIGSTOP.*: it is continued, to stop", out
        )
    assert sorted(re.findall(r"broker (\d) stopped", out)) == ["0", "1", "2"]


def test_brokers_whose_store_is_locked_stop_at_the_same_time(serve, tmp_path):
    process = serve("--brokers", "3", "-o", "zookeeper.session.timeout.ms=600000")
    lines_until(process, "3 brokers")
    store = tmp_path / "c" / STORE_FILE_NAME
    with locked_by_a_process(store) as pid:
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=DEADLINE_S)
    assert (process.returncode, err) == (0, "")
    lock, together, *ends = out.splitlines()
    assert lock.startswith(f"kcore: the metadata store {store} is locked by process {pid} (")
    assert together == "kcore: the brokers stop at the same time"
    assert sum("stopped" in line for line in ends) == 3
    begun, ended = zip(*(stop_of(tmp_path / "c" / f"broker-{number}.txt") for number in range(3)), strict=True)
    assert max(begun) < min(ended)


def stop_of(log):
    """When a broker saw that it stops without its store, and when it had stopped."""
    times = {}
    for line in log.read_text().splitlines():
        for text in ("stops without its store", "has stopped"):
            if line.endswith(text) or f"{text}: " in line:
                times[text] = line[:23]
    return times["stops without its store"], times["has stopped"]


def children_of(pid):
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


def test_a_broker_that_a_debugger_keeps_still_is_named_and_killed(tmp_path, monkeypatch, capsys):
    cluster = serve_cluster._ServedCluster(arguments_of(tmp_path))
    cluster._running[1] = child = Process()
    monkeypatch.setattr(cluster, "_controller", lambda: None)
    monkeypatch.setattr(serve_cluster, "_LONG_STOP_S", 0)
    reason = "its process 4711 stands still, stopped by a debugger"
    monkeypatch.setattr(
        serve_cluster, "process", lambda pid: SimpleNamespace(stopped_reason=lambda: reason, data_dirs=())
    )
    next_event = cluster._next_event

    def after_the_kill(timeout_s):
        if child.calls[-1] == "kill":
            cluster._events.put(serve_cluster._Event(1))
        return next_event(timeout_s)

    monkeypatch.setattr(cluster, "_next_event", after_the_kill)
    assert not cluster.stop()
    assert child.calls == [signal.SIGCONT, "terminate", "kill"]
    assert capsys.readouterr().out.splitlines() == [
        f"kcore: broker 1: {reason}: it is continued, to stop",
        f"kcore: broker 1: {reason}: it is killed",
        "kcore: broker 1 has ended by SIGKILL",
    ]


def test_a_broker_that_stands_still_only_while_it_is_waited_for_is_continued_too(tmp_path, monkeypatch, capsys):
    cluster = serve_cluster._ServedCluster(arguments_of(tmp_path))
    cluster._running[1] = child = Process()
    monkeypatch.setattr(cluster, "_controller", lambda: None)
    monkeypatch.setattr(serve_cluster, "_LONG_STOP_S", 0)
    looks = iter([None, "its process 4711 stands still", None])
    monkeypatch.setattr(
        serve_cluster, "process", lambda pid: SimpleNamespace(stopped_reason=lambda: next(looks), data_dirs=())
    )
    next_event = cluster._next_event

    def after_the_continuation(timeout_s):
        if child.calls[-1] == signal.SIGCONT:
            child.returncode = 0
            cluster._events.put(serve_cluster._Event(1))
        return next_event(timeout_s)

    monkeypatch.setattr(cluster, "_next_event", after_the_continuation)
    assert cluster.stop()
    assert child.calls == ["terminate", signal.SIGCONT]
    assert capsys.readouterr().out.splitlines() == [
        "kcore: broker 1: its process 4711 stands still: it is continued, to stop",
        "kcore: broker 1 stopped",
    ]


@pytest.mark.timeout(5 * DEADLINE_S)
def test_a_broker_that_cannot_start_ends_all_and_its_error_is_printed(serve, tmp_path):
    process = serve("--brokers", "2", "-o", "log.segment.bytes=x")
    _, err = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 2
    assert "has ended with status 2" in err and "log.segment.bytes" in err


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--data", "c", "--id", "3"], "leave out --id"),
        ([], "Give --data DIR"),
        (["--data", "c", "-o", "log.dirs=/x"], "log.dirs is not the same for all brokers"),
        (["--data", "c", "-o", "listeners=A://b:1"], "listeners is not the same for all brokers"),
        (["--data", "c", "-o", "kcore.monitoring.address=h:1"], "give --monitoring HOST:PORT"),
        (
            ["--data", "c", "--monitoring", "127.0.0.1:0"],
            "HOST:PORT, and with --brokers no port 0",
        ),
        (["--data", "c", "--monitoring", "9404"], "--monitoring 9404: expected HOST:PORT"),
        (["--data", "lone"], "lone is one broker's: give a cluster a directory of its own, as --data lone-cluster"),
        (["--data", "mirrored"], "mirrored is one broker's: give a cluster a directory of its own"),
        (["--data", "mirrored/orders-0/"], "mirrored/orders-0/ is one broker's: give a cluster a directory of its own"),
    ],
)
def test_what_cannot_be_the_same_for_all_brokers_is_refused(tmp_path, monkeypatch, capsys, arguments, reason):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lone").mkdir()
    meta_properties.write(str(tmp_path / "lone"), "MkU3OEVBNTcwNTJENDM2Qg", 1)
    (tmp_path / "mirrored" / "orders-0").mkdir(parents=True)
    (tmp_path / "mirrored" / "orders-0" / f"{0:020}.log").touch()
    assert main(["serve", "--brokers", "3", *arguments]) == 2
    assert reason in capsys.readouterr().err
    assert not (tmp_path / "c").exists() and len([*(tmp_path / "mirrored").rglob("*")]) == 2


def test_the_files_of_sessions_that_were_killed_are_no_logs(tmp_path):
    (tmp_path / "kcore-metadata.db-session-1").touch()
    assert not serve_cluster._has_logs(str(tmp_path))


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--brokers", "101"], "'--brokers': '101': expected a whole number from 1 to 100"),
        (
            ["--brokers", "3", "--port", "65534"],
            "--port 65534: 3 brokers take the ports from it on, and 65535 is the last",
        ),
        (
            ["--brokers", "3", "--port", "0", "--monitoring", "127.0.0.1:65534"],
            "--monitoring 127.0.0.1:65534: 3 brokers take the ports from it on, and 65535 is the last",
        ),
        (["--brokers", "3", "--port", "-1"], "--port -1: expected a port, or 0 for free ones"),
    ],
)
def test_more_brokers_than_one_machine_has_ports_or_room_for_are_refused_before_one_starts(
    tmp_path, capsys, arguments, reason
):
    assert main(["serve", "--data", str(tmp_path / "c"), *arguments]) == 2
    assert reason in capsys.readouterr().err
    assert not (tmp_path / "c").exists()


def test_the_last_port_may_be_the_last_brokers(tmp_path):
    args = arguments_of(tmp_path)
    args.port = 65533
    assert serve_cluster._ServedCluster(args)._port(2) == 65535


@pytest.mark.parametrize("of_first", ["signal", "end"])
def test_a_signal_or_an_ended_broker_stops_the_start_of_the_others(tmp_path, monkeypatch, of_first):
    """All of them started before a signal was looked at: a large number could not be stopped."""
    cluster, started = serve_cluster._ServedCluster(arguments_of(tmp_path)), []

    def start_broker(number):
        started.append(number)
        cluster._events.put(serve_cluster._Event(number, "a line\n"))
        if of_first == "signal":
            cluster.request_stop()
        else:
            cluster._events.put(serve_cluster._Event(number))
        return Process()

    monkeypatch.setattr(cluster, "_start_broker", start_broker)
    monkeypatch.setattr(cluster, "_read", lambda number, child: None)
    with pytest.raises(serve_cluster._StopRequested if of_first == "signal" else serve_cluster._StartFailed):
        cluster.start()
    assert started == [0]


def test_the_brokers_are_asked_at_the_same_time_whether_they_know_each_other(tmp_path, monkeypatch):
    """One that stood still kept the others from being asked for as long as it was waited for."""
    cluster = serve_cluster._ServedCluster(arguments_of(tmp_path))
    cluster._running.update((number, Process()) for number in range(3))
    all_asked = threading.Barrier(3)

    def controller_by(number):
        all_asked.wait(DEADLINE_S)
        return 0

    monkeypatch.setattr(cluster, "_controller_by", controller_by)
    assert cluster._agree()
    monkeypatch.setattr(cluster, "_controller_by", lambda number: None if number == 1 else 0)
    assert not cluster._agree()


def test_the_controller_is_asked_of_another_broker_while_one_does_not_answer(tmp_path, monkeypatch):
    cluster = serve_cluster._ServedCluster(arguments_of(tmp_path))
    cluster._running.update((number, Process()) for number in range(3))
    cluster._addresses.update((number, "127.0.0.1:1") for number in range(3))
    released = threading.Event()
    answers = {0: lambda: released.wait(DEADLINE_S) and 7, 1: lambda: None, 2: lambda: 2}
    monkeypatch.setattr(cluster, "_controller_by", lambda number: answers[number]())
    try:
        assert cluster._controller() == 2
    finally:
        released.set()
    answers.update(dict.fromkeys(range(3), lambda: None))
    assert cluster._controller() is None


def arguments_of(tmp_path, *, config=None, overrides=()):
    return SimpleNamespace(
        brokers=3,
        id=None,
        data=str(tmp_path / "c"),
        config=config,
        overrides=list(overrides),
        store=None,
        host=None,
        port=9092,
        monitoring=None,
        http=None,
        environment=False,
    )


class Process:
    """Ends when it is killed."""

    returncode = -signal.SIGKILL

    def __init__(self):
        self.calls = []

    pid = 0  # no process has it

    def send_signal(self, number):
        self.calls.append(number)

    def terminate(self):
        self.calls.append("terminate")

    def kill(self):
        self.calls.append("kill")


def test_the_end_of_the_brokers_that_were_started_here_says_nothing_of_those_started_again(
    tmp_path, monkeypatch, capsys
):
    """Started again with the command that was printed, a broker runs in another terminal."""

    def start(cluster):
        cluster._running[1] = Process()
        cluster._events.put(serve_cluster._Event(1))

    monkeypatch.setattr(serve_cluster._ServedCluster, "start", start)
    monkeypatch.setattr(serve_cluster._ServedCluster, "summary", lambda cluster: ["kcore: serving"])
    monkeypatch.setattr(serve_cluster.signal, "signal", lambda number, handler: None)
    assert serve_cluster.run(SimpleNamespace(**vars(arguments_of(tmp_path)), hints=False)) == 1
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == "kcore: none of the brokers that this command has started runs any more"


@pytest.mark.parametrize(
    ("reason", "expected"),
    [
        ("'the port is taken'", "the end of {log}:\n  the port is taken"),
        ("7", "{log} has no line of this start"),
    ],
)
def test_of_a_brokers_log_only_the_lines_of_this_start_are_printed(tmp_path, monkeypatch, reason, expected):
    """The last lines of a start of the day before looked like the reason."""
    cluster = serve_cluster._ServedCluster(arguments_of(tmp_path))
    os.makedirs(cluster._args.data, exist_ok=True)
    log = Path(cluster._log_file(1))
    log.write_text("yesterday's reason\n")
    command = [sys.executable, "-c", f"import sys; sys.exit({reason})"]
    monkeypatch.setattr(serve_cluster._ServedCluster, "_command", lambda cluster, number: command)
    with cluster._start_broker(1) as child:
        cluster._running[1] = child
    text = cluster._how_it_ended(serve_cluster._Event(1))
    assert text == f"broker 1 has ended with status {child.returncode}; {expected.format(log=log)}"
    assert log.read_text().startswith("yesterday's reason\n")


def test_what_a_broker_could_not_write_into_its_log_is_said_to_be_lost(tmp_path, monkeypatch):
    """On a full disk the log was empty, and the reason nowhere."""
    cluster = serve_cluster._ServedCluster(arguments_of(tmp_path))
    os.makedirs(cluster._args.data, exist_ok=True)
    with open(cluster._log_file(1), "w"):
        pass
    monkeypatch.setattr(serve_cluster.os, "statvfs", lambda path: SimpleNamespace(f_bavail=0, f_frsize=4096))
    cluster._running[1] = SimpleNamespace(returncode=1)
    first, last = cluster._how_it_ended(serve_cluster._Event(1)).splitlines()
    assert first.startswith("broker 1 has ended with status 1; the end of ")
    assert last == "  (the disk is full, 0 bytes free: the log may lack its end)"


def test_a_second_signal_within_a_second_is_the_same_request_and_a_later_one_kills(tmp_path, monkeypatch, capsys):
    time = MockTime()
    cluster = serve_cluster._ServedCluster(arguments_of(tmp_path), time=time)
    cluster.request_stop()
    time.sleep(999)
    cluster.request_stop()
    with pytest.raises(serve_cluster._StopRequested):
        cluster._next_event(60)
    assert cluster._events.empty()
    cluster._running[1] = process = Process()
    monkeypatch.setattr(cluster, "_controller", lambda: None)
    monkeypatch.setattr(serve_cluster, "_LONG_STOP_S", 0)
    next_event = cluster._next_event
    waits = itertools.count()

    def after_the_notice(timeout_s):
        if next(waits) == 2:  # after two waits: the notice came once
            time.sleep(1)
            cluster.request_stop()
        elif process.calls == ["terminate", "kill"]:
            cluster._events.put(serve_cluster._Event(1))
        return next_event(timeout_s)

    monkeypatch.setattr(cluster, "_next_event", after_the_notice)
    assert not cluster.stop()
    assert capsys.readouterr().out == (
        "kcore: waiting for broker 1 to stop; another Ctrl-C kills what still runs\n"
        "kcore: broker 1 has ended by SIGKILL\n"
    )


def test_a_setting_of_the_file_or_the_command_line_wins_over_the_ones_for_a_cluster(tmp_path):
    file = tmp_path / "server.properties"
    file.write_text("zookeeper.session.timeout.ms=9000\n")
    args = arguments_of(tmp_path, config=str(file), overrides=["default.replication.factor=1"])
    command = serve_cluster._ServedCluster(args)._command(2)
    settings = [command[at + 1] for at, word in enumerate(command) if word == "-o"]
    assert "offsets.topic.replication.factor=3" in settings
    assert [text for text in settings if text.startswith(("default.", "zookeeper."))] == [
        "zookeeper.connection.timeout.ms=18000",
        "default.replication.factor=1",
    ]
    assert command[command.index("--port") + 1] == "9094"


def test_each_broker_has_a_port_of_its_own_for_monitoring(tmp_path):
    args = arguments_of(tmp_path)
    args.monitoring = "[::1]:9404"
    cluster = serve_cluster._ServedCluster(args)
    ports = [command[command.index("--monitoring") + 1] for command in map(cluster._command, range(3))]
    assert ports == ["[::1]:9404", "[::1]:9405", "[::1]:9406"]
    cluster._addresses = {0: "127.0.0.1:9092"}
    assert "  http://[::1]:9404/metrics, /healthz, /readyz; the others: the next ports" in cluster.summary()


@pytest.mark.parametrize(
    ("store", "shown"),
    [
        (None, f"sqlite:{{here}}/c/{STORE_FILE_NAME}"),
        ("sqlite:s/x.db", "sqlite:{here}/s/x.db"),
        ("zookeeper://h:1/c", "zookeeper://h:1/c"),
    ],
)
def test_the_command_that_starts_a_broker_again_works_in_every_directory(tmp_path, monkeypatch, store, shown):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.properties").write_text("")
    args = arguments_of(tmp_path, config="mine.properties")
    args.data, args.store = "c", store
    cluster = serve_cluster._ServedCluster(args)
    monkeypatch.setattr(cluster, "_port", lambda number: 7)
    command = cluster._command(1, is_hint=True)
    assert os.path.isabs(command[0]) and command[1] == "serve"
    options = dict(zip(command[2:12:2], command[3:12:2], strict=True))
    assert options == {
        "--id": "1",
        "--data": f"{tmp_path}/c/1",
        "--store": shown.format(here=tmp_path),
        "--port": "7",
        "--config": f"{tmp_path}/mine.properties",
    }


@pytest.mark.parametrize("is_asked_for", [True, False])
def test_each_broker_takes_settings_from_the_environment_if_the_cluster_does(tmp_path, monkeypatch, is_asked_for):
    for name in [name for name in os.environ if name.startswith("KAFKA_")]:
        monkeypatch.delenv(name)
    args = arguments_of(tmp_path)
    args.environment = is_asked_for
    command = serve_cluster._ServedCluster(args)._command(2)
    assert ("--environment" in command) is is_asked_for
