"""What a group has committed for one partition."""

class OffsetAndMetadata:
    """A committed offset.  Times in ms since the epoch; expire_timestamp only from clients that set a retention."""

    def __init__(
        self,
        offset: int,
        metadata: str = ...,
        leader_epoch: int = ...,
        commit_timestamp: int = ...,
        expire_timestamp: int | None = ...,
    ) -> None: ...
    @property
    def offset(self) -> int: ...
    @property
    def metadata(self) -> str: ...
    @property
    def leader_epoch(self) -> int: ...
    @property
    def commit_timestamp(self) -> int: ...
    @property
    def expire_timestamp(self) -> int | None: ...

class CommittedOffset:
    """With the log offset of its record, which decides between two commits of one partition."""

    def __init__(self, append_offset: int, value: OffsetAndMetadata) -> None: ...
    @property
    def append_offset(self) -> int: ...
    @property
    def value(self) -> OffsetAndMetadata: ...

def read_version_3(data: bytes) -> OffsetAndMetadata | None:
    """Of an offset commit's value; None if it is not exactly one of version 3."""
