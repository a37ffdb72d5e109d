"""What stands before every request and response.

Request: int16 api key, int16 version, int32 correlation id, nullable string client id (never compact), from the first
flexible version on also tagged fields.  Response: int32 correlation id, from the first flexible version on tagged
fields, except ApiVersions, whose response header is version 0 always.
Source: RequestHeader.json and ResponseHeader.json, ApiKeys.responseHeaderVersion, Kafka; KIP-511.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from kcore.errors import InvalidRequest
from kcore.protocol.api_keys import ApiKey, is_flexible
from kcore.protocol.schema import Message

if TYPE_CHECKING:
    from kcore.protocol.codec import FileSlice

_FIXED = struct.Struct(">hhi")
_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")
_API_KEYS = {int(key): key for key in ApiKey}
# Read for each request: to look a member of an enum up takes longer than to read the rest of a header.
_CONTROLLED_SHUTDOWN, _API_VERSIONS = ApiKey.CONTROLLED_SHUTDOWN, ApiKey.API_VERSIONS


class RequestHeader(NamedTuple):
    api_key: ApiKey
    api_version: int
    correlation_id: int
    client_id: str | None
    #: Where the request's body starts in the buffer.
    body_position: int


def decode_request_header(buffer: bytes | bytearray | memoryview, position: int = 0) -> RequestHeader:
    """The header at `position` of a frame (which begins after its size).

    The version may be one that is not served (api_keys.served_apis).  An ApiVersions request of such a version is
    answered with messages.api_versions.unsupported_version_response(); for any other API Kafka closes the connection.
    Raises InvalidRequest for an unknown API key or a malformed header: Kafka closes the connection then, too.
    """
    end = len(buffer)
    if end - position < 8:
        raise InvalidRequest(f"request header at position {position}: 8 bytes expected, {end - position} left")
    number, version, correlation_id = _FIXED.unpack_from(buffer, position)
    api_key = _API_KEYS.get(number)
    if api_key is None:
        raise InvalidRequest(f"request header at position {position}: unknown api key {number}")
    position += 8
    if api_key == _CONTROLLED_SHUTDOWN and version == 0:
        # The one request with header version 0, which ends here.
        return RequestHeader(api_key, version, correlation_id, None, position)
    if end - position < 2:
        raise InvalidRequest(f"client_id at position {position}: 2 bytes expected, {end - position} left")
    (length,) = _INT16.unpack_from(buffer, position)
    position += 2
    client_id = None
    if length >= 0:
        if length > end - position:
            raise InvalidRequest(
                f"client_id at position {position}: length {length}, but only {end - position} bytes follow"
            )
        try:
            client_id = str(buffer[position : position + length], "utf-8")
        except UnicodeDecodeError:
            raise InvalidRequest(f"client_id at position {position}: not UTF-8") from None
        position += length
    if is_flexible(api_key, version):
        if position < end and buffer[position] == 0:
            position += 1  # none, as nearly always
        else:
            position = _skip_tagged_fields(buffer, position)
    return RequestHeader(api_key, version, correlation_id, client_id, position)


def encode_request_header(api_key: ApiKey, api_version: int, correlation_id: int, client_id: str | None) -> bytes:
    """The header that a client puts before its request."""
    return _FIXED.pack(api_key, api_version, correlation_id) + _request_header_end(api_key, api_version, client_id)


@lru_cache(256)
def _request_header_end(api_key: ApiKey, api_version: int, client_id: str | None) -> bytes:
    """What follows the correlation id: the same in all requests that a sender makes of one API."""
    if api_key == _CONTROLLED_SHUTDOWN and api_version == 0:
        return b""
    name = b"" if client_id is None else client_id.encode()
    tags = b"\0" if is_flexible(api_key, api_version) else b""
    return _INT16.pack(-1 if client_id is None else len(name)) + name + tags


def encode_response_header(api_key: ApiKey, api_version: int, correlation_id: int) -> bytes:
    """The header of a response: 4 bytes, or 5 in flexible versions of all APIs but ApiVersions."""
    if is_flexible(api_key, api_version) and api_key != _API_VERSIONS:
        return _INT32.pack(correlation_id) + b"\0"
    return _INT32.pack(correlation_id)


def decode_response_header(
    buffer: bytes | bytearray | memoryview, api_key: ApiKey, api_version: int, position: int = 0
) -> tuple[int, int]:
    """(correlation id, position of the body).  Raises InvalidRequest."""
    if len(buffer) - position < 4:
        raise InvalidRequest(f"response header: 4 bytes expected, {len(buffer) - position} left")
    (correlation_id,) = _INT32.unpack_from(buffer, position)
    position += 4
    if is_flexible(api_key, api_version) and api_key != _API_VERSIONS:
        position = _skip_tagged_fields(buffer, position)
    return correlation_id, position


def encode_response(
    header: RequestHeader, response: Message, api_version: int | None = None
) -> list[bytes | FileSlice]:
    """A whole frame to send, size and header included, for the request of `header`: bytes and file slices by turns.

    api_version: where the response is of another version than the request (ApiVersions, KIP-511).
    """
    version = header.api_version if api_version is None else api_version
    return response.encode_frame(version, encode_response_header(header.api_key, version, header.correlation_id))


def _skip_tagged_fields(buffer: bytes | bytearray | memoryview, position: int) -> int:
    """The position after a header's tagged fields, of which none is known."""
    if position < len(buffer) and buffer[position] == 0:
        return position + 1  # none, as nearly always
    count, position = _uvarint(buffer, position)
    for _ in range(count):
        _, position = _uvarint(buffer, position)
        size, position = _uvarint(buffer, position)
        if size > len(buffer) - position:
            raise InvalidRequest(f"header: tagged field of {size} bytes at position {position}, {len(buffer)} in all")
        position += size
    return position


def _uvarint(buffer: bytes | bytearray | memoryview, position: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 35, 7):
        if position >= len(buffer):
            raise InvalidRequest(f"header: varint expected at position {position}, which is the end")
        byte = buffer[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
    raise InvalidRequest(f"header: varint of more than 5 bytes before position {position}")
