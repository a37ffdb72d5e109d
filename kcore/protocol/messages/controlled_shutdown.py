"""ControlledShutdown (7): a broker asks the controller to move the leadership of its partitions.  Source: KIP-380."""

from __future__ import annotations

from kcore.protocol.api_keys import ApiKey
from kcore.protocol.schema import Message, Struct, array, int16, int32, int64, string


class ControlledShutdownRequest(Message):
    """broker_epoch: that of the broker's registration, so that one that has registered again since is left alone."""

    api_key = ApiKey.CONTROLLED_SHUTDOWN
    min_version, max_version, flexible_version = 0, 3, 3

    broker_id: int = int32()
    broker_epoch: int = int64("2+", default=-1, ignorable=True)


class RemainingPartition(Struct):
    topic_name: str = string()
    partition_index: int = int32()


class ControlledShutdownResponse(Message):
    """The partitions that the broker still leads; it may stop once there are none."""

    api_key = ApiKey.CONTROLLED_SHUTDOWN
    min_version, max_version, flexible_version = 0, 3, 3

    error_code: int = int16()
    remaining_partitions: list[RemainingPartition] = array(RemainingPartition)
