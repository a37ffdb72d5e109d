"""Headers before requests and responses."""

import random
import struct

import pytest

from kcore.errors import InvalidRequest
from kcore.protocol.api_keys import SUPPORTED, ApiKey, is_flexible
from kcore.protocol.headers import (
    decode_request_header,
    decode_response_header,
    encode_request_header,
    encode_response,
    encode_response_header,
)
from kcore.protocol.messages.api_versions import (
    ApiVersionsResponse,
    api_versions_response,
    unsupported_version_response,
)


@pytest.mark.parametrize("client_id", [None, "", "a client", "\u00fcml\u00e4ut"])
@pytest.mark.parametrize(("version", "tags"), [(11, 0), (12, 1)])
def test_a_request_header_comes_back_as_it_was_sent(client_id, version, tags):
    sent = encode_request_header(ApiKey.FETCH, version, 77, client_id)
    assert len(sent) == 10 + len((client_id or "").encode()) + tags
    for frame in (sent + b"body", bytearray(sent + b"body"), memoryview(sent + b"body")):
        header = decode_request_header(frame)
        assert header == (ApiKey.FETCH, version, 77, client_id, len(sent))
        assert header.api_key is ApiKey.FETCH


def test_unknown_tagged_fields_of_a_request_header_are_skipped():
    sent = encode_request_header(ApiKey.FETCH, 12, 1, "c")[:-1] + b"\x02\x00\x03abc\x81\x01\x00"
    assert decode_request_header(sent + b"body").body_position == len(sent)


@pytest.mark.parametrize("version", [11, 12])
def test_a_request_header_cut_anywhere_is_an_invalid_request(version):
    sent = encode_request_header(ApiKey.FETCH, version, 77, "client")
    for end in range(len(sent)):
        with pytest.raises(InvalidRequest, match=r"position|left"):
            decode_request_header(sent[:end])


@pytest.mark.parametrize(
    "frame",
    [
        struct.pack(">hhih", 0x7FFF, 0, 1, -1),
        struct.pack(">hhih", -1, 0, 1, -1),
        struct.pack(">hhih", 1, 4, 1, 0x7FFF) + b"abc",
        struct.pack(">hhih", 1, 4, 1, 2) + b"\xff\xff",
        struct.pack(">hhih", 1, 12, 1, -1) + b"\xff\xff\xff\xff\xff\xff",
        struct.pack(">hhih", 1, 12, 1, -1) + b"\x01\x00\xff\xff\xff\xff\x07",
    ],
)
def test_an_impossible_request_header_is_an_invalid_request(frame):
    with pytest.raises(InvalidRequest):
        decode_request_header(frame)


def test_random_bytes_never_raise_anything_but_an_invalid_request():
    seed = 20
    print(f"seed={seed}")
    rng = random.Random(seed)
    for _ in range(20_000):
        frame = bytearray(struct.pack(">hh", rng.randrange(95), rng.randrange(14))) + rng.randbytes(rng.randrange(40))
        try:
            assert decode_request_header(frame).body_position <= len(frame)
        except InvalidRequest:
            pass


def test_the_response_header_is_five_bytes_in_flexible_versions_but_never_of_api_versions():
    assert encode_response_header(ApiKey.FETCH, 11, 5) == b"\0\0\0\5"
    assert encode_response_header(ApiKey.FETCH, 12, 5) == b"\0\0\0\5\0"
    assert encode_response_header(ApiKey.API_VERSIONS, 3, 5) == b"\0\0\0\5"
    assert decode_response_header(b"\0\0\0\5\0", ApiKey.FETCH, 12) == (5, 5)
    assert decode_response_header(b"\0\0\0\5\0", ApiKey.API_VERSIONS, 3) == (5, 4)


def test_an_api_versions_request_of_an_unknown_version_is_answered_in_version_0_as_kafka_does():
    request = encode_request_header(ApiKey.API_VERSIONS, 99, 12, "new client") + b"nobody knows"
    header = decode_request_header(request)
    assert header.api_version > SUPPORTED[header.api_key][1]
    (frame,) = encode_response(header, unsupported_version_response(SUPPORTED[ApiKey.API_VERSIONS]), 0)
    assert struct.unpack_from(">ii", frame) == (len(frame) - 4, 12)
    # What a 4.3.1 broker answers: error 35 and one key, ApiVersions 0 to 4.
    assert frame[8:] == bytes.fromhex("0023 00000001 0012 0000 0004")
    assert ApiVersionsResponse.decode(frame, 0, 8) == unsupported_version_response(SUPPORTED[ApiKey.API_VERSIONS])


def test_api_versions_lists_every_key_with_its_range():
    answer = api_versions_response(SUPPORTED, throttle_time_ms=3)
    assert answer.error_code == 0 and answer.throttle_time_ms == 3
    assert {k.api_key: (k.min_version, k.max_version) for k in answer.api_keys} == SUPPORTED


def test_produce_and_fetch_are_served_in_all_versions_and_no_request_of_kraft_is():
    assert (SUPPORTED[ApiKey.PRODUCE], SUPPORTED[ApiKey.FETCH]) == ((0, 13), (0, 18))
    assert ApiKey.VOTE not in SUPPORTED


def test_flexible_versions_begin_where_the_message_declares_it():
    from kcore.protocol.messages import request_class, response_class

    for key in SUPPORTED:
        for cls in (request_class(key), response_class(key)):
            first = cls.max_version + 1 if cls.flexible_version is None else cls.flexible_version
            for version in range(cls.min_version, cls.max_version + 1):
                assert is_flexible(key, version) == (version >= first)
