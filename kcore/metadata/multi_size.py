"""How large a multi() may be, and how a caller cuts one that would be larger.

ZooKeeper's server breaks the connection of a client that sends a message above jute.maxbuffer, 1 MiB unless it is
configured.  A store cannot cut a multi() and keep its promise of all or nothing; so a caller that may have more
divides it, at places where each part alone leaves the store consistent.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from kcore.metadata.store import CheckChildrenCreated, Create, Operation, SetData

#: Of one multi(), with room for the header of the message.
MAX_BYTES = (1 << 20) - 1024
#: Of one operation beside its path and its data: headers, lengths, the access list of a new node.
_OVERHEAD = 64


def operation_size(operation: Operation) -> int:
    """An upper bound of its bytes in a message to ZooKeeper, without a chroot."""
    if isinstance(operation, CheckChildrenCreated):
        return 2 * (len(operation.path.encode()) + _OVERHEAD)  # a node is created and deleted
    data = len(operation.data) if isinstance(operation, Create | SetData) else 0
    return len(operation.path.encode()) + data + _OVERHEAD


def pieces(groups: Iterable[Sequence[Operation]], max_bytes: int = MAX_BYTES // 2) -> Iterator[list[Operation]]:
    """The operations in lists of at most max_bytes, in order; a group stays together.

    Half of what ZooKeeper takes by default: there is room for a chroot before each path, and for checks.
    """
    piece: list[Operation] = []
    size = 0
    for group in groups:
        group_size = sum(map(operation_size, group))
        if piece and size + group_size > max_bytes:
            yield piece
            piece, size = [], 0
        piece.extend(group)
        size += group_size
    if piece:
        yield piece
