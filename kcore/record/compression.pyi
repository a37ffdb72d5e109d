"""gzip, snappy, lz4, zstd: one compress and one decompress.  CODECS[i] is the codec of attribute bits i."""

CODECS: tuple[str, ...]

def compress(codec: int, data: bytes | bytearray | memoryview, level: int | None = ...) -> bytes: ...
def decompress(
    codec: int, data: bytes | bytearray | memoryview, *, max_size: int = ..., source: str = ...
) -> bytes: ...  # CorruptMessage for bytes the codec refuses or that would exceed max_size
