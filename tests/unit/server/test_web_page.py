"""broker.http and cluster.http: a page about them, as a `kcore web` process that ends with them."""

import os
import re
import signal
import socket
import subprocess
import sys
import threading
import urllib.request
from html import unescape
from pathlib import Path

import pytest

import kcore
from kcore.server.web_process import PageUrl
from tests.waiting import wait_until

#: The state of a socket in /proc/net/tcp.
_LISTENS = "0A"


def read(url):
    """The page's text; empty where nobody listens."""
    try:
        return urllib.request.urlopen(url, timeout=60).read().decode()
    except OSError:
        return ""


def is_open(url):
    """Whether anybody listens there."""
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", int(re.search(r":(\d+)/$", url)[1]))) == 0


def page_process(url):
    """The id of the process that listens there."""
    port = int(re.search(r":(\d+)/$", url)[1])
    sockets = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()]
    (inode,) = [words[9] for words in sockets if words[1] == f"0100007F:{port:04X}" and words[3] == _LISTENS]
    for pid in filter(str.isdecimal, os.listdir("/proc")):
        try:
            if f"socket:[{inode}]" in map(os.readlink, Path("/proc", pid, "fd").iterdir()):
                return int(pid)
        except OSError:
            continue
    raise AssertionError(f"no process has the socket of {url}")


def test_a_brokers_page_is_its_own_until_the_broker_stops():
    with kcore.Broker() as broker:
        broker.create_topic("orders")
        url = broker.http
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/", url)
        assert broker.bootstrap_servers in read(url)
        wait_until(lambda: "orders" in read(f"{url}topics"))
        assert broker.http == url
        broker.restart()
        assert broker.http == url and broker.bootstrap_servers in read(url)
    assert not is_open(url)


def test_a_notebook_shows_the_address_as_a_link():
    html = PageUrl("http://[fe80::1%eth0]:80/?a=1&b='\"<")._repr_html_()
    shown = re.fullmatch(r'<a href="([^"<>]*)" target="_blank" rel="noopener">([^"<>]*)</a>', html)
    assert [unescape(part) for part in shown.groups()] == ["http://[fe80::1%eth0]:80/?a=1&b='\"<"] * 2
    with kcore.Broker() as broker:
        assert broker.http._repr_html_().startswith(f'<a href="{broker.http}"')


def test_a_clusters_page_shows_its_brokers_and_outlives_one():
    with kcore.Cluster(2) as cluster:
        url = cluster.http
        shown = {0, 1}
        assert set(map(int, re.findall(r'<td class="right">(\d+)</td>', read(url)))) == shown
        cluster.kill(0)
        assert cluster.http == url
        wait_until(lambda: re.findall(r'<td class="right">(\d+)</td>', read(url)) == ["1"])
    assert not is_open(url)
    with pytest.raises(RuntimeError, match="the cluster has stopped"):
        cluster.http  # noqa: B018


def test_a_page_ends_with_a_killed_broker():
    broker = kcore.Broker().start()
    try:
        url = broker.http
        assert read(url)
    finally:
        broker.kill()
    assert not is_open(url)


def test_a_page_that_has_ended_is_started_again():
    with kcore.Broker() as broker:
        url = broker.http
        assert read(url)
        os.kill(page_process(url), signal.SIGKILL)
        wait_until(lambda: read(url) == "")
        assert broker.bootstrap_servers in read(wait_until(lambda: broker.http != url and broker.http))


def test_a_page_outlives_the_thread_that_has_asked_for_it_first():
    with kcore.Broker() as broker:
        found = []
        thread = threading.Thread(target=lambda: found.append(read(broker.http)))
        thread.start()
        thread.join()
        # Its end is a signal to the page's process, which is to go on.
        wait_until(lambda: not os.path.exists(f"/proc/self/task/{thread.native_id}"))
        url = broker.http
        for _ in range(100):
            assert read(f"{url}static/page.css")
        assert broker.http == url


@pytest.mark.parametrize("made", ["Broker()", "Cluster(1)"])
def test_a_page_ends_with_a_process_that_is_killed(made):
    code = f"import kcore, time; it = kcore.{made}.start(); print(it.http, flush=True); time.sleep(1000)"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as process:
        try:
            url = process.stdout.readline().strip()
            wait_until(lambda: read(url))
        finally:
            process.kill()
    wait_until(lambda: read(url) == "")


def test_a_page_ends_with_the_interpreter_of_a_broker_that_was_not_stopped(tmp_path):
    code = f"""
import kcore, urllib.request
brokers = [kcore.Broker().start(), kcore.Cluster(1, {str(tmp_path)!r}).start()]
for it in brokers:
    urllib.request.urlopen(it.http).read()
    print(it.http)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    urls = done.stdout.split()
    assert len(urls) == 2
    for url in urls:
        wait_until(lambda url=url: read(url) == "")


def test_a_broker_that_does_not_run_in_this_process_has_no_page():
    broker = kcore.Broker()
    with pytest.raises(RuntimeError, match="the broker has not started"):
        broker.http  # noqa: B018
    with broker:
        child = os.fork()
        if child == 0:
            try:
                broker.http  # noqa: B018
            except RuntimeError:
                os._exit(0)
            os._exit(1)
        assert os.waitpid(child, 0)[1] == 0
    with pytest.raises(RuntimeError, match="the broker has stopped"):
        broker.http  # noqa: B018
    with pytest.raises(RuntimeError, match="the cluster has not started"):
        kcore.Cluster(1).http  # noqa: B018
