"""What a broker alone starts without: each of these modules would make the start slower for everybody."""

import importlib.util
import json
import os
import subprocess
import sys

import pytest

ALONE = "import kcore\nwith kcore.Broker() as broker: broker.bootstrap_servers"
SERVE = "import kcore.tools.main, kcore.tools.serve\n" + ALONE

#: For brokers of a cluster, for moves between data directories, for explain_isr() and explain_fetch(), with ACLs, with
#: a receiver of clients' metrics, for regular expressions.
FOR_SOME_BROKERS = {
    "kcore.client.blocking_sender",
    "kcore.controller.controller_store",
    "kcore.controller.kafka_controller",
    "kcore.metadata.zookeeper_session",
    "kcore.metadata.zookeeper_store",
    "kcore.replica.explain",
    "kcore.replica.fetcher.fetcher_state",
    "kcore.replica.moves.future_logs",
    "kcore.replica.fetcher.leader_endpoint",
    "kcore.replica.fetcher.replica_fetcher_manager",
    "kcore.replica.fetcher.replica_fetcher_thread",
    "kcore.security.acl_authorizer",
    "kcore.server.member.cluster_member",
    "kcore.server.requests.client_telemetry",
    "kcore.replication.remote_leader_endpoint",
    "kcore.server.topics.store_topic_changes",
    "re2",
}
#: For a parent process, mistakes, international names of hosts, addresses, quotas, and child processes.
STANDARD = {"ctypes", "difflib", "encodings.idna", "ipaddress", "subprocess", "urllib.parse"}
#: With the first to_arrow() or iter_arrow().
COLUMNS = {"kcore.log.log_columns", "kcore.record.arrow"}
#: With the first request of each API.
MESSAGES = {
    "kcore.protocol.messages.api_versions",
    "kcore.protocol.messages.fetch",
    "kcore.protocol.messages.leader_and_isr",
    "kcore.protocol.messages.list_offsets",
    "kcore.protocol.messages.metadata",
    "kcore.protocol.messages.update_metadata",
}
NOT_AT_THE_START = FOR_SOME_BROKERS | STANDARD | COLUMNS | MESSAGES


def modules_after(code: str) -> set[str]:
    """What a fresh interpreter has imported."""
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\nimport json, sys\nprint(json.dumps(list(sys.modules)))"],
        capture_output=True, text=True, env=os.environ, check=True, timeout=60,
    )  # fmt: skip
    return set(json.loads(done.stdout.splitlines()[-1]))


@pytest.mark.parametrize("code", [ALONE, SERVE], ids=["Broker()", "kcore serve"])
def test_a_broker_alone_starts_without_what_only_some_brokers_need(code):
    modules = modules_after(code)
    assert "kcore.replica.replica_manager" in modules
    assert sorted(modules & NOT_AT_THE_START) == []


def test_the_modules_that_a_start_does_without_exist():
    # Of one that was renamed nothing would be found, wherever it is imported.
    assert [name for name in sorted(NOT_AT_THE_START) if importlib.util.find_spec(name) is None] == []


def test_a_broker_of_a_cluster_has_its_parts(tmp_path):
    modules = modules_after(f"import kcore\nwith kcore.Broker(store='sqlite:{tmp_path}/cluster.db') as broker: pass")
    assert modules >= {
        "kcore.controller.kafka_controller",
        "kcore.replica.fetcher.fetcher_state",
        "kcore.server.member.cluster_member",
    }
