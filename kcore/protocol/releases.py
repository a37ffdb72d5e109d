"""Which versions of an API the releases of Kafka announce, for brokers that act like an older one.

Source: what brokers of each release answer to ApiVersions.
"""

from __future__ import annotations

from collections.abc import Mapping

from kcore.protocol.api_keys import ApiKey

#: Oldest first.
RELEASES = (
    *("1.0", "1.1", "2.0", "2.1", "2.2", "2.3", "2.4", "2.5", "2.6", "2.7", "2.8"),
    *("3.0", "3.1", "3.2", "3.3", "3.4", "3.5", "3.6", "3.7", "3.8", "3.9", "4.0", "4.1", "4.2", "4.3"),
)

#: Of each API that kcore serves to clients: the release from which on the versions up to this one are announced, and in
#: LOW-HIGH those from LOW on.
_ANNOUNCED = {
    ApiKey.PRODUCE: "1.0:5 2.0:6 2.1:7 2.4:8 2.8:9 3.7:10 3.8:11 4.0:12 4.1:13",
    ApiKey.FETCH: "1.0:6 1.1:7 2.0:8 2.1:10 2.3:11 2.7:12 3.1:13 3.5:15 3.7:16 3.9:17 4.0:4-17 4.1:4-18",
    ApiKey.LIST_OFFSETS: "1.0:2 2.0:3 2.1:4 2.2:5 2.8:6 3.0:7 3.5:8 3.9:9 4.0:1-10 4.2:1-11",
    ApiKey.METADATA: "1.0:5 2.0:6 2.1:7 2.3:8 2.4:9 2.8:11 3.1:12 4.0:13",
    ApiKey.OFFSET_COMMIT: "1.0:3 2.0:4 2.1:6 2.3:7 2.4:8 3.7:9 4.0:2-9 4.2:2-10",
    ApiKey.OFFSET_FETCH: "1.0:3 2.0:4 2.1:5 2.4:6 2.5:7 3.0:8 3.7:9 4.0:1-9 4.2:1-10",
    ApiKey.FIND_COORDINATOR: "1.0:1 2.0:2 2.4:3 3.0:4 3.8:5 3.9:6",
    ApiKey.JOIN_GROUP: "1.0:2 2.0:3 2.2:4 2.3:5 2.4:6 2.5:7 3.2:9 4.0:2-9 4.1:9",
    ApiKey.HEARTBEAT: "1.0:1 2.0:2 2.3:3 2.4:4",
    ApiKey.LEAVE_GROUP: "1.0:1 2.0:2 2.4:4 3.2:5",
    ApiKey.SYNC_GROUP: "1.0:1 2.0:2 2.3:3 2.4:4 2.5:5",
    ApiKey.DESCRIBE_GROUPS: "1.0:1 2.0:2 2.3:3 2.4:5 4.0:6",
    ApiKey.LIST_GROUPS: "1.0:1 2.0:2 2.4:3 2.6:4 3.8:5",
    ApiKey.API_VERSIONS: "1.0:1 2.0:2 2.4:3 3.9:4",
    ApiKey.CREATE_TOPICS: "1.0:2 2.0:3 2.4:5 2.7:6 2.8:7 4.0:2-7",
    ApiKey.DELETE_TOPICS: "1.0:1 2.0:2 2.1:3 2.4:4 2.7:5 2.8:6 4.0:1-6",
    ApiKey.DELETE_RECORDS: "1.0:0 2.0:1 2.6:2",
    ApiKey.INIT_PRODUCER_ID: "1.0:0 2.0:1 2.4:2 2.5:3 2.7:4 3.8:5",
    ApiKey.OFFSET_FOR_LEADER_EPOCH: "1.0:0 2.0:1 2.1:2 2.3:3 2.8:4 4.0:2-4",
    ApiKey.DESCRIBE_ACLS: "1.0:0 2.0:1 2.5:2 3.3:3 4.0:1-3",
    ApiKey.CREATE_ACLS: "1.0:0 2.0:1 2.5:2 3.3:3 4.0:1-3",
    ApiKey.DELETE_ACLS: "1.0:0 2.0:1 2.5:2 3.3:3 4.0:1-3",
    ApiKey.DESCRIBE_CONFIGS: "1.0:0 1.1:1 2.0:2 2.6:3 2.8:4 4.0:1-4",
    ApiKey.ALTER_CONFIGS: "1.0:0 2.0:1 2.8:2",
    ApiKey.ALTER_REPLICA_LOG_DIRS: "1.0:0 2.0:1 2.8:2 4.0:1-2",
    ApiKey.DESCRIBE_LOG_DIRS: "1.0:0 2.0:1 2.6:2 3.2:3 3.3:4 4.0:1-4 4.3:1-5",
    ApiKey.CREATE_PARTITIONS: "1.0:0 2.0:1 2.5:2 2.7:3",
    ApiKey.DELETE_GROUPS: "1.1:0 2.0:1 2.4:2",
    ApiKey.ELECT_LEADERS: "2.2:0 2.4:2",
    ApiKey.INCREMENTAL_ALTER_CONFIGS: "2.3:0 2.4:1",
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: "2.4:0 4.1:1",
    ApiKey.LIST_PARTITION_REASSIGNMENTS: "2.4:0",
    ApiKey.OFFSET_DELETE: "2.4:0",
    ApiKey.DESCRIBE_CLIENT_QUOTAS: "2.6:0 2.8:1",
    ApiKey.ALTER_CLIENT_QUOTAS: "2.6:0 2.8:1",
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: "2.7:0",
    ApiKey.UPDATE_FEATURES: "2.7:0 3.3:1 4.0:2",
    ApiKey.DESCRIBE_CLUSTER: "2.8:0 3.7:1 4.0:2",
    ApiKey.ADD_PARTITIONS_TO_TXN: "1.0:0 2.0:1 2.7:2 2.8:3 3.6:4 3.8:5",
    ApiKey.ADD_OFFSETS_TO_TXN: "1.0:0 2.0:1 2.7:2 2.8:3 3.8:4",
    ApiKey.END_TXN: "1.0:0 2.0:1 2.7:2 2.8:3 3.8:4 4.0:5",
    ApiKey.WRITE_TXN_MARKERS: "1.0:0 2.8:1 4.0:1-1 4.2:1-2",
    ApiKey.TXN_OFFSET_COMMIT: "1.0:0 2.0:1 2.1:2 2.5:3 3.8:4 4.0:5",
    ApiKey.DESCRIBE_PRODUCERS: "2.8:0",
    ApiKey.DESCRIBE_TRANSACTIONS: "3.0:0",
    ApiKey.LIST_TRANSACTIONS: "3.0:0 3.8:1 4.1:2",
    ApiKey.CONSUMER_GROUP_HEARTBEAT: "3.7:0 4.0:1",
    ApiKey.CONSUMER_GROUP_DESCRIBE: "3.8:0 4.0:1",
    # Kafka has them with KRaft only, which is the only way from 4.0 on.
    ApiKey.GET_TELEMETRY_SUBSCRIPTIONS: "4.0:0",
    ApiKey.PUSH_TELEMETRY: "4.0:0",
    ApiKey.LIST_CONFIG_RESOURCES: "4.0:0 4.1:1",
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: "4.0:0",
}


def versions_of_release(api_key: ApiKey, release: str) -> tuple[int, int] | None:
    """The lowest and the highest version of an API; None for one that the release does not have.

    Raises KeyError for an API that kcore does not serve to clients, ValueError for an unknown release.
    """
    place, versions = RELEASES.index(release), None
    for change in _ANNOUNCED[api_key].split():
        since, _, numbers = change.partition(":")
        if RELEASES.index(since) <= place:
            low, _, high = numbers.rpartition("-")
            versions = int(low or 0), int(high)
    return versions


def apis_of_release(served: Mapping[ApiKey, tuple[int, int]], release: str) -> dict[ApiKey, tuple[int, int]]:
    """What is left of the served versions for a broker that acts like this release; requests between brokers are left
    as they are."""
    ranges: dict[ApiKey, tuple[int, int]] = {}
    for api_key, (low, high) in served.items():
        versions = versions_of_release(api_key, release) if api_key in _ANNOUNCED else (low, high)
        if versions is not None and max(low, versions[0]) <= min(high, versions[1]):
            ranges[api_key] = max(low, versions[0]), min(high, versions[1])
    return ranges
