"""The controller's requests against bytes that Kafka 3.9's own codec wrote (tests/golden/controller-requests)."""

import base64
import json
from uuid import UUID

import pytest

from kcore.protocol.api_keys import INTER_BROKER, ApiKey, is_flexible
from kcore.protocol.headers import decode_request_header, encode_request_header
from kcore.protocol.messages import request_class, response_class
from tests.golden_data import golden_file
from tests.unit.protocol.random_messages import in_range


def golden_messages():
    text = golden_file("controller-requests/messages.txt").read_text()
    for line in text.splitlines():
        name, version, fields, data = line.split(" ")
        yield name, int(version), json.loads(fields), bytes.fromhex(data)


CLASSES = {cls.__name__: cls for key in INTER_BROKER for cls in (request_class(key), response_class(key))}


def camel_case(name):
    first, *rest = name.split("_")
    return "isKRaftController" if name == "is_kraft_controller" else first + "".join(word.title() for word in rest)


def message(cls, fields, version):
    """The message that has Kafka's JSON."""
    values = {}
    for field in cls._layout.fields:
        if in_range(field.versions, version):
            value = fields.pop(camel_case(field.name))
            if field.struct is not None:
                value = [message(field.struct, item, version) for item in value]
            elif field.type_name == "uuid":
                value = UUID(bytes=base64.urlsafe_b64decode(value + "=="))
            values[field.name] = value
    assert fields == {}
    return cls(**values)


def test_kafkas_bytes_are_there_for_each_version():
    versions = {(name, version) for name, version, _, _ in golden_messages()}
    assert versions == {
        (cls.__name__, version) for cls in CLASSES.values() for version in range(INTER_BROKER[cls.api_key][1] + 1)
    }


@pytest.mark.parametrize("cls", CLASSES.values(), ids=lambda cls: cls.__name__)
def test_a_message_has_the_bytes_that_kafka_writes(cls):
    for name, version, fields, data in golden_messages():
        if name == cls.__name__:
            ours = message(cls, fields, version)
            assert ours.encode(version) == data, f"version {version}"
            assert cls.decode(data, version) == ours, f"version {version}"


def test_flexible_versions_begin_where_the_message_declares_it():
    for cls in CLASSES.values():
        for version in range(cls.min_version, cls.max_version + 1):
            assert is_flexible(cls.api_key, version) == (version >= cls.flexible_version)


def test_the_header_of_the_first_controlled_shutdown_ends_before_the_client_id():
    sent = encode_request_header(ApiKey.CONTROLLED_SHUTDOWN, 0, 7, "client")
    assert len(sent) == 8
    assert decode_request_header(sent + b"body") == (ApiKey.CONTROLLED_SHUTDOWN, 0, 7, None, 8)
