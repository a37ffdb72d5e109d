"""MultiRead: the request of ZooKeeper that reads many nodes at once (ZooKeeper 3.6), which kazoo does not have.

Request: for each node a MultiHeader {int32 type = getData, bool done = false, int32 error = -1}, then {string path,
bool watch}; at the end a MultiHeader with done = true.  Answer: for each node a MultiHeader and {buffer data, Stat}, or
with type -1 {int32 error}.  All integers big-endian.  Source: ZooDefs.OpCode.multiRead, MultiOperationRecord,
MultiResponse, ZooKeeper 3.8.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from kazoo.exceptions import EXCEPTIONS, KazooException, NoNodeError
from kazoo.protocol.serialization import int_struct, read_buffer, write_string

from kcore.metadata.store import Node

_GET_DATA = 4
_ERROR = -1
_HEADER = struct.Struct(">i?i")
#: czxid, mzxid, ctime, mtime, version, cversion, aversion, ephemeralOwner, dataLength, numChildren, pzxid.
_STAT = struct.Struct(">qqqqiiiqiiq")
_END = _HEADER.pack(-1, True, -1)


class MultiRead:
    """A request as kazoo sends it.  paths: with the chroot before them."""

    type = 22

    def __init__(self, paths: Sequence[str]) -> None:
        self.paths = paths

    def serialize(self) -> bytes:
        header = _HEADER.pack(_GET_DATA, False, -1)
        return b"".join(part for path in self.paths for part in (header, write_string(path), b"\0")) + _END

    @staticmethod
    def deserialize(data: bytes, offset: int) -> list[Node | KazooException | None]:
        """The nodes, None for each that is not there, and the error of each that cannot be read."""
        nodes: list[Node | KazooException | None] = []
        while True:
            kind, is_last, _ = _HEADER.unpack_from(data, offset)
            offset += _HEADER.size
            if is_last:
                return nodes
            if kind == _ERROR:
                (code,) = int_struct.unpack_from(data, offset)
                offset += int_struct.size
                nodes.append(None if code == NoNodeError.code else EXCEPTIONS[code]())
                continue
            body, offset = read_buffer(data, offset)
            stat = _STAT.unpack_from(data, offset)
            offset += _STAT.size
            nodes.append(Node(body or b"", stat[4], stat[0], stat[7]))
