"""What only a broker of a cluster has: a third of all modules, with the controller, the fetchers and the client for
other brokers.  Broker imports this module when it starts as one, so that a broker alone starts without them."""

from kcore.server.config.stored_topic_configs import StoredTopicConfigs
from kcore.server.member.cluster_controller import controlled_shutdown, join_cluster, make_controller
from kcore.server.member.cluster_member import ClusterMember
from kcore.server.member.inter_broker_connections import InterBrokerConnections
from kcore.server.member.member_metrics import member_metrics
from kcore.server.member.replica_fetchers import replica_fetchers
from kcore.server.topics.store_topic_changes import StoreTopicChanges

__all__ = [
    "ClusterMember",
    "InterBrokerConnections",
    "StoreTopicChanges",
    "StoredTopicConfigs",
    "controlled_shutdown",
    "join_cluster",
    "make_controller",
    "member_metrics",
    "replica_fetchers",
]
