"""containers/: the variables of the image and of the compose file start a broker, the health check knows whether it is
ready, systemd can read the unit, and the example of a workflow is one."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tomllib
from concurrent.futures import ThreadPoolExecutor

import pytest

from kcore.server.config.kafka_config import KafkaConfig
from kcore.tools.serve_settings import settings_of_environment
from tests.pages import ROOT

yaml = pytest.importorskip("yaml")

CONTAINERFILE = (ROOT / "containers" / "Containerfile").read_text().replace("\\\n", " ")
COMPOSE = yaml.safe_load((ROOT / "containers" / "compose.yaml").read_text())


def instruction(name):
    """The last one of the Containerfile with this name."""
    return re.findall(rf"^{name} (.*)$", CONTAINERFILE, re.M)[-1]


def variables_of_the_image():
    return dict(word.split("=", 1) for word in instruction("ENV").split())


VARIABLES = {
    "image": variables_of_the_image(),
    "compose": variables_of_the_image() | COMPOSE["services"]["kcore"]["environment"],
}


def health_check(port):
    """Status of the image's check where the variable has another port than the image's own."""
    command = json.loads(re.search(r"CMD (\[.*\])", instruction("HEALTHCHECK"))[1])
    assert command[0] == "python"
    environment = {**os.environ, "KAFKA_KCORE_MONITORING_ADDRESS": f"0.0.0.0:{port}"}
    done = subprocess.run([sys.executable, *command[1:]], env=environment, timeout=60, check=False)
    return done.returncode


@pytest.mark.parametrize("place", VARIABLES)
def test_the_variables_are_settings(place):
    config = KafkaConfig(settings_of_environment(VARIABLES[place]))
    assert config.data_dirs == ["/var/lib/kcore/data"]
    assert {listener.port for listener in config.listeners} == ({9092} if place == "image" else {9092, 29092})


@pytest.mark.parametrize("place", VARIABLES)
def test_a_broker_with_these_variables_serves_and_is_ready(place, tmp_path):
    free_ports = {name: re.sub(r"0\.0\.0\.0:\d+", "127.0.0.1:0", value) for name, value in VARIABLES[place].items()}
    entry_point = json.loads(instruction("ENTRYPOINT"))
    assert entry_point[0] == "kcore"
    process = subprocess.Popen(
        [sys.executable, "-m", "kcore", *entry_point[1:]],
        env={**os.environ, **free_ports, "KAFKA_LOG_DIRS": str(tmp_path / "data")},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout.readline().startswith(f"kcore: serving {tmp_path}/data on ")
        port = re.search(r":(\d+)/metrics", process.stdout.readline())[1]
        assert health_check(port) == 0
    finally:
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    assert health_check(port) != 0


def test_a_broker_that_is_not_ready_is_not_healthy_and_the_check_prints_why(capfd):
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(60)
        with ThreadPoolExecutor(1) as threads:
            status = threads.submit(health_check, server.getsockname()[1])
            connection, _ = server.accept()
            with connection, connection.makefile() as request:
                assert request.readline() == "GET /readyz HTTP/1.0\n"
                assert request.readline() == "\n"
                connection.sendall(b"HTTP/1.0 503 Service Unavailable\r\n\r\nloading logs\n")
                connection.shutdown(socket.SHUT_WR)
                assert status.result(timeout=60) == 1
    assert "\nloading logs\n" in capfd.readouterr().err


def test_the_page_says_when_a_start_is_unhealthy_and_whom_the_check_asks():
    page = " ".join((ROOT / "docs" / "containers.md").read_text().split())
    times = dict(re.findall(r"--([a-z-]+)=(\d+)s", instruction("HEALTHCHECK")))
    assert "--retries" not in instruction("HEALTHCHECK")  # Docker's default of 3
    assert f"A start that takes longer than {times['start-period']} s, the start period of the health check" in page
    assert f"three checks later, {times['interval']} s apart" in page
    assert "'127.0.0.1', port" in instruction("HEALTHCHECK") and "The check asks 127.0.0.1" in page


def test_the_page_builds_the_wheel_before_it_installs_it():
    commands = (
        (ROOT / "docs" / "containers.md").read_text().partition("## systemd")[2].partition("```sh\n")[2].splitlines()
    )
    assert commands[0].split("#")[0].strip() == "make wheel" and "dist/kcore-*.whl" in commands[1]


def test_the_build_gets_what_the_package_is_made_of_and_nothing_else_of_a_clone():
    """A folder that setup.py or pyproject.toml needs must be in .dockerignore; one of 2 GB like .venv must not."""
    rules = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and line[0] != "#"]
    assert rules[0] == "*"
    kept = {rule[1:] for rule in rules if rule[0] == "!"}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    packages = {pattern.rstrip("*") for pattern in project["tool"]["setuptools"]["packages"]["find"]["include"]}
    modules = {f"{name}.py" for name in project["tool"]["setuptools"]["py-modules"]}
    texts = {project["project"]["readme"], *project["project"]["license-files"]}
    assert kept == packages | modules | texts | {"csrc", "setup.py", "pyproject.toml"}


def test_the_broker_runs_as_a_user_without_rights_whose_group_an_arbitrary_user_has_too():
    assert instruction("USER") == "kcore"
    (run,) = (line for line in re.findall(r"^RUN (.*)$", CONTAINERFILE, re.M) if "useradd" in line)
    assert "--uid 1000 --gid 0 " in run
    assert f"mkdir -m 775 {instruction('VOLUME')} && chown kcore:0 {instruction('VOLUME')}" in run
    assert variables_of_the_image()["KAFKA_LOG_DIRS"].startswith(f"{instruction('VOLUME')}/")


def test_where_no_engine_answers_the_image_is_not_tried_and_a_line_says_so(tmp_path):
    for name in ("docker", "podman"):
        (tmp_path / name).write_text("#!/bin/sh\nexit 1\n")
        (tmp_path / name).chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "ENGINE": ""}
    command = ["bash", ROOT / "ci" / "try_image.sh"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "try_image.sh: skipped: neither docker nor podman answers here\n"


def test_the_compose_file_builds_this_clone():
    build = COMPOSE["services"]["kcore"]["build"]
    assert (ROOT / "containers" / build["context"]).resolve() == ROOT
    assert (ROOT / build["dockerfile"]).exists()


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze, which systemd brings")
def test_systemd_can_read_the_unit(tmp_path):
    unit = (ROOT / "containers" / "kcore.service").read_text()
    assert "/opt/kcore/bin/kcore " in unit
    # systemd looks whether the program is there.
    (tmp_path / "kcore.service").write_text(unit.replace("/opt/kcore/bin/kcore ", f"{sys.executable} -m kcore "))
    done = subprocess.run(
        ["systemd-analyze", "verify", tmp_path / "kcore.service"], capture_output=True, text=True, check=False
    )
    assert "kcore.service:" not in done.stderr, done.stderr


def test_the_workflow_of_the_page_is_yaml_and_has_the_commands_that_there_are():
    (text,) = re.findall(r"```yaml\n(.*?)```", (ROOT / "docs" / "containers.md").read_text(), re.S)
    steps = yaml.safe_load(text)["jobs"]["test"]["steps"]
    assert any("kcore serve" in step.get("run", "") for step in steps)
