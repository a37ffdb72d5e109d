"""A cluster that is only said to be there: one process that answers as three brokers with many partitions and groups.

`python -m bench.flow.fake_cluster TOPICS PARTITIONS GROUPS` prints its address and ends with its standard input.  Every
partition has three replicas and 1,000 records, of which each group has read the first 900 of ten partitions.
"""

from __future__ import annotations

import socketserver
import struct
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

from kcore.protocol.api_keys import SUPPORTED, ApiKey
from kcore.protocol.headers import decode_request_header, encode_response_header
from kcore.protocol.messages import api_versions as av
from kcore.protocol.messages import describe_configs as dc
from kcore.protocol.messages import describe_groups as de
from kcore.protocol.messages import find_coordinator as fc
from kcore.protocol.messages import list_groups as lg
from kcore.protocol.messages import list_offsets as lo
from kcore.protocol.messages import metadata as m
from kcore.protocol.messages import offset_fetch as of
from kcore.protocol.messages import request_class
from kcore.protocol.schema import Message

_SIZE = struct.Struct(">i")
_BROKERS = 3
_END, _COMMITTED = 1000, 900
_PARTITIONS_OF_A_GROUP = 10


class FakeCluster:
    def __init__(self, topics: int, partitions: int, groups: int) -> None:
        self.topics = {f"topic-{number:05}": partitions for number in range(topics)}
        self.groups = [f"group-{number:05}" for number in range(groups)]
        self.address = ("127.0.0.1", 0)
        self._answers: dict[ApiKey, Callable[[Any], Message]] = {
            ApiKey.API_VERSIONS: lambda request: av.api_versions_response(SUPPORTED),
            ApiKey.DESCRIBE_CONFIGS: self._configs,
            ApiKey.DESCRIBE_GROUPS: self._described,
            ApiKey.FIND_COORDINATOR: lambda request: fc.FindCoordinatorResponse(
                node_id=0, host=self.address[0], port=self.address[1]
            ),
            ApiKey.LIST_GROUPS: self._listed,
            ApiKey.LIST_OFFSETS: self._offsets,
            ApiKey.OFFSET_FETCH: self._committed,
        }
        #: What it takes to answer for all is not the page's.
        self._all_topics = cache(lambda version: self._metadata(self.topics).encode(version))

    def answer(self, frame: bytes) -> bytes:
        """To a request without its size: the response with its size."""
        header = decode_request_header(frame)
        request: Any = request_class(header.api_key).decode(frame, header.api_version, header.body_position)
        if header.api_key != ApiKey.METADATA:
            body = self._answers[header.api_key](request).encode(header.api_version)
        elif request.topics is None:
            body = self._all_topics(header.api_version)
        else:
            body = self._metadata([topic.name for topic in request.topics]).encode(header.api_version)
        head = encode_response_header(header.api_key, header.api_version, header.correlation_id)
        return b"".join((_SIZE.pack(len(head) + len(body)), head, body))

    def _metadata(self, names: Iterable[str]) -> m.MetadataResponse:
        host, port = self.address
        brokers = [m.MetadataResponseBroker(node_id=n, host=host, port=port, rack=None) for n in range(_BROKERS)]
        replicas = list(range(_BROKERS))
        topics = [
            m.MetadataResponseTopic(
                name=name,
                partitions=[
                    m.MetadataResponsePartition(
                        partition_index=n, leader_id=n % _BROKERS, replica_nodes=replicas, isr_nodes=replicas
                    )
                    for n in range(self.topics[name])
                ],
            )
            for name in names
        ]
        return m.MetadataResponse(brokers=brokers, cluster_id="fake", controller_id=0, topics=topics)

    def _configs(self, request: dc.DescribeConfigsRequest) -> Message:
        results = [
            dc.DescribeConfigsResult(resource_type=asked.resource_type, resource_name=asked.resource_name, configs=[])
            for asked in request.resources
        ]
        return dc.DescribeConfigsResponse(results=results)

    def _described(self, request: de.DescribeGroupsRequest) -> Message:
        described = [
            de.DescribedGroup(group_id=group_id, group_state="Empty", protocol_type="consumer")
            for group_id in request.groups
        ]
        return de.DescribeGroupsResponse(groups=described)

    def _listed(self, request: lg.ListGroupsRequest) -> Message:
        listed = [
            lg.ListedGroup(group_id=group_id, protocol_type="consumer", group_state="Empty") for group_id in self.groups
        ]
        return lg.ListGroupsResponse(groups=listed)

    def _offsets(self, request: lo.ListOffsetsRequest) -> Message:
        return lo.ListOffsetsResponse(
            topics=[
                lo.ListOffsetsTopicResponse(
                    name=topic.name,
                    partitions=[
                        lo.ListOffsetsPartitionResponse(
                            partition_index=asked.partition_index, offset=0 if asked.timestamp == -2 else _END
                        )
                        for asked in topic.partitions
                    ],
                )
                for topic in request.topics
            ]
        )

    def _committed(self, request: of.OffsetFetchRequest) -> Message:
        name = f"topic-{int(request.group_id.rpartition('-')[2]) % len(self.topics):05}"
        partitions = [
            of.OffsetFetchResponsePartition(partition_index=n, committed_offset=_COMMITTED, metadata="")
            for n in range(min(_PARTITIONS_OF_A_GROUP, self.topics[name]))
        ]
        return of.OffsetFetchResponse(topics=[of.OffsetFetchResponseTopic(name=name, partitions=partitions)])


class _Connection(socketserver.StreamRequestHandler):
    disable_nagle_algorithm = True

    def handle(self) -> None:
        while size := self.rfile.read(_SIZE.size):
            self.wfile.write(self.server.cluster.answer(self.rfile.read(*_SIZE.unpack(size))))  # type: ignore[attr-defined]


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    allow_reuse_address = True


@contextmanager
def serving(cluster: FakeCluster) -> Iterator[None]:
    """It answers at its address while the block runs."""
    with _Server(cluster.address, _Connection) as server:
        server.cluster = cluster  # type: ignore[attr-defined]
        cluster.address = server.server_address[:2]  # type: ignore[assignment]
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield
        server.shutdown()


def main() -> None:
    cluster = FakeCluster(*map(int, sys.argv[1:4]))
    with serving(cluster):
        print("{}:{}".format(*cluster.address), flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main()
