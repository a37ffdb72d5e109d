"""LogSegments: a log's segments, ordered by base offset."""

from collections.abc import Iterable, Iterator

from kcore.log.log_segment import LogSegment

class LogSegments:
    """Changes are serialised by the log's lock; reads need no lock, each sees the segments of one moment."""

    @property
    def active(self) -> LogSegment | None: ...  # the last segment, the only one written to
    @property
    def first(self) -> LogSegment | None: ...
    @property
    def size_in_bytes(self) -> int: ...
    def add(self, segment: LogSegment) -> None: ...  # one of the same base offset is replaced
    def replace(self, removed: Iterable[LogSegment], added: Iterable[LogSegment] = ...) -> None: ...  # in one step
    def get(self, base_offset: int) -> LogSegment | None: ...
    def floor(self, offset: int) -> LogSegment | None: ...  # greatest base offset <= offset
    def higher(self, offset: int) -> LogSegment | None: ...  # the first base offset > offset
    def from_floor(self, offset: int) -> list[LogSegment]: ...  # the floor segment, if any, and all after it
    def base_offsets(self) -> list[int]: ...
    def __iter__(self) -> Iterator[LogSegment]: ...
    def __getitem__(self, index: int) -> LogSegment: ...
    def __len__(self) -> int: ...
