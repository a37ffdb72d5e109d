import kcore
from kcore.client.admin_client import AdminClient
from kcore.inspect.topic_settings import cleanup_policy
from kcore.tools.command_line import addresses


def test_a_setting_that_a_running_broker_changes_is_read_anew(tmp_path):
    """It is in SQLite's write-ahead log: the file itself stays as it was."""
    with kcore.Broker(tmp_path) as broker, AdminClient(addresses(broker.bootstrap_servers)) as admin:
        broker.create_topic("t")
        for policy in ("compact", "delete", "compact,delete"):
            admin.alter_topic_config("t", {"cleanup.policy": policy})
            assert cleanup_policy(str(tmp_path), "t") == tuple(policy.split(","))
    assert cleanup_policy(str(tmp_path), "u") is None
    assert cleanup_policy(str(tmp_path / "elsewhere"), "t") is None
