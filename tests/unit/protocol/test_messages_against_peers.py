"""The same messages through other people's codecs: kio, kafka-python's present one and its former, hand-written one.

Each must read our bytes as the same values, field by field, and write the same bytes from them.  kio and
kafka-python's present codec know the versions of 4.x, the former one the old versions that 3.9 serves.
"""

import datetime
import enum
import io
import random
from importlib import import_module

import kafka.protocol.old as kafka_python_old
import pytest
from kio.serial import entity_reader, entity_writer

from kcore.common.topic_partition import ZERO_UUID
from kcore.protocol.api_keys import INTER_BROKER
from kcore.protocol.messages import consumer_group_records
from tests.unit.protocol.random_messages import all_versions, case_id, in_range, is_flexible, random_struct

ROUNDS = 25


def snake(name: str) -> str:
    return "".join("_" + c.lower() if c.isupper() else c for c in name).lstrip("_")


def plain(value):
    """A peer's value as ours: codes, times in milliseconds, lists, the zero id."""
    if isinstance(value, enum.Enum):
        return int(value.value)
    if isinstance(value, datetime.timedelta):
        return round(value / datetime.timedelta(milliseconds=1))
    if isinstance(value, datetime.datetime):
        return round(value.timestamp() * 1000)
    if isinstance(value, memoryview | bytearray):
        return bytes(value)
    if isinstance(value, tuple):
        return list(value)
    return value


def squeezed(name: str) -> str:
    return name.replace("_", "").removesuffix("ms")


def assert_same(ours, theirs, names, version, path=""):
    """Every field that this version has, compared by name."""
    attributes = {squeezed(name): name for name in names(theirs)}
    for field in ours._layout.fields:
        if not in_range(field.versions, version):
            continue
        here = f"{path}.{field.name}"
        assert squeezed(field.name) in attributes, f"{here}: not among {sorted(attributes)}"
        left, right = getattr(ours, field.name), plain(getattr(theirs, attributes[squeezed(field.name)]))
        if field.type_name == "uuid":
            right = right or ZERO_UUID
        if isinstance(left, list) and field.element_name == "struct":
            assert len(left) == len(right), here
            for i, (a, b) in enumerate(zip(left, right, strict=True)):
                assert_same(a, b, names, version, f"{here}[{i}]")
        elif field.type_name == "struct" and right is None:
            assert left in (None, getattr(type(ours)(), field.name)), here  # kafka-python: a tag not sent
        elif field.type_name == "struct":
            assert_same(left, right, names, version, here)
        else:
            assert right == left, here


# ---------------------------------------------------------------- kio


def kio_class(cls, version):
    """kio's class of this message and version, None if it has none."""
    name = cls.__name__
    for kind in ("Request", "Response"):
        if name.endswith(kind):
            module = f"{snake(name.removesuffix(kind))}.v{version}.{kind.lower()}"
            break
    else:
        module = f"{snake(name)}.v{version}.data"
    try:
        return getattr(import_module(f"kio.schema.{module}"), name)
    except ModuleNotFoundError:
        return None


KIO_CASES = [(cls, version) for cls, version in all_versions() if kio_class(cls, version)]


@pytest.mark.parametrize(("cls", "version"), KIO_CASES, ids=case_id)
def test_kio_reads_and_writes_the_same(cls, version):
    seed = f"kio {cls.__name__}{version}"
    rng = random.Random(seed)
    theirs_cls = kio_class(cls, version)
    read, write = entity_reader(theirs_cls), entity_writer(theirs_cls)
    for _ in range(ROUNDS):
        ours = random_struct(rng, cls, version)
        data = ours.encode(version)
        theirs, size = read(data, 0)
        assert size == len(data), f"seed={seed}"
        assert_same(ours, theirs, lambda o: o.__dataclass_fields__, version, f"seed={seed} {cls.__name__}")
        written = io.BytesIO()
        write(written, theirs)
        assert written.getvalue() == data, f"seed={seed}"
        assert cls.decode(written.getvalue(), version) == ours


# ---------------------------------------------------------------- kafka-python


def kafka_python_class(cls, version):
    """kafka-python's class if it declares this version."""
    peer = None
    for module in ("producer", "consumer", "metadata", "admin"):
        peer = peer or getattr(import_module(f"kafka.protocol.{module}"), cls.__name__, None)
    if version >= {"MetadataResponse": 8, "DescribeGroupsResponse": 3, "DescribeClusterResponse": 0}.get(
        cls.__name__, 99
    ):
        return None  # it makes sets of the authorized operations, under other names
    if cls.__name__ == "ApiVersionsResponse":
        return None  # it reads an error code of 35 as version 0, whatever version is asked for
    if peer is None or not peer._valid_versions[0] <= version <= peer._valid_versions[1]:
        return None
    return peer


def as_kafka_python(ours, data_class, version, **top):
    """Our values in kafka-python's containers; a tagged field is given only if it is to be sent."""
    default = type(ours)()
    names = {squeezed(name): field for name, field in data_class._struct.fields.items()}
    values = {}
    for field in ours._layout.fields:
        value = getattr(ours, field.name)
        if not in_range(field.versions, version) or (field.tag >= 0 and value == getattr(default, field.name)):
            continue
        theirs = names[squeezed(field.name)]
        if field.struct and isinstance(value, list):
            value = [as_kafka_python(v, theirs.data_class, version) for v in value]
        elif field.struct and value is not None:
            value = as_kafka_python(value, theirs.data_class, version)
        values[theirs.name] = value
    return data_class(version=version, **values)


KAFKA_PYTHON_CASES = [(cls, version) for cls, version in all_versions() if kafka_python_class(cls, version)]


@pytest.mark.parametrize(("cls", "version"), KAFKA_PYTHON_CASES, ids=case_id)
def test_kafka_python_reads_and_writes_the_same(cls, version):
    seed = f"kafka-python {cls.__name__}{version}"
    rng = random.Random(seed)
    theirs_cls = kafka_python_class(cls, version)
    for _ in range(ROUNDS):
        ours = random_struct(rng, cls, version)
        data = ours.encode(version)
        if not hasattr(cls, "api_key"):
            data = version.to_bytes(2, "big") + data  # its consumer protocol has the version in front
        assert bytes(as_kafka_python(ours, theirs_cls, version).encode()) == data, f"seed={seed}"
        theirs = theirs_cls.decode(data, version=version)
        assert_same(ours, theirs, lambda o: o._struct.fields, version, f"seed={seed} {cls.__name__}")


# ---------------------------------------------------------------- kafka-python's former codec


def former_class(cls, version):
    """The hand-written class of this version; its field names are its own, so values go by position."""
    for module in ("produce", "fetch", "list_offsets", "metadata", "commit", "find_coordinator", "group", "admin",
                   "api_versions", "init_producer_id", "offset_for_leader_epoch"):  # fmt: skip
        peer = getattr(import_module(f"{kafka_python_old.__name__}.{module}"), f"{cls.__name__}_v{version}", None)
        if peer is not None:
            return peer
    return None


def as_tuple(ours, version):
    """The fields in wire order, structs as tuples: what the former codec takes and gives."""
    values = []
    for field in ours._layout.fields:
        if not in_range(field.versions, version):
            continue
        value = getattr(ours, field.name)
        if field.struct and value is not None:
            value = [as_tuple(v, version) for v in value]
        values.append(value)
    return tuple(values)


def unnested(value):
    return tuple(unnested(v) for v in value) if isinstance(value, list | tuple) else plain(value)


#: Where the former codec has another shape, first version: an array of single fields without the struct around them,
#: bit fields as sets, a throttle time put first, one partition where there is an array of them.
PECULIAR = {
    "MetadataRequest": 0,
    "CreatePartitionsRequest": 0,
    "MetadataResponse": 8,
    "DescribeGroupsResponse": 3,
    "ApiVersionsResponse": 1,
    "DescribeLogDirsRequest": 0,
}
FORMER_CASES = [
    (cls, version)
    for cls, version in all_versions()
    if former_class(cls, version) and not is_flexible(cls, version) and version < PECULIAR.get(cls.__name__, 99)
]


@pytest.mark.parametrize(("cls", "version"), FORMER_CASES, ids=case_id)
def test_the_former_kafka_python_reads_and_writes_the_same(cls, version):
    seed = f"former {cls.__name__}{version}"
    rng = random.Random(seed)
    theirs_cls = former_class(cls, version)
    for _ in range(ROUNDS):
        ours = random_struct(rng, cls, version)
        data = ours.encode(version)
        values = as_tuple(ours, version)
        assert theirs_cls(*values).encode() == data, f"seed={seed}"
        theirs = theirs_cls.decode(data)
        assert unnested([getattr(theirs, name) for name in theirs.SCHEMA.names]) == unnested(values), f"seed={seed}"


def test_nearly_every_version_has_a_peer_and_those_without_are_listed():
    with_peer = {*KIO_CASES, *KAFKA_PYTHON_CASES, *FORMER_CASES}
    alone = {
        f"{cls.__name__}_v{version}"
        for cls, version in all_versions()
        # test_controller_requests.py compares those with Kafka's own bytes, test_consumer_group_records.py the records.
        if (cls, version) not in with_peer
        and cls.__module__ != consumer_group_records.__name__
        and cls.api_key not in INTER_BROKER
    }
    # 4.4's newest, and oldest ones that are like version 1.
    assert alone == {
        *("ApiVersionsRequest_v5", "ApiVersionsResponse_v5", "DeleteGroupsRequest_v3", "DeleteGroupsResponse_v3"),
        *("WriteTxnMarkersRequest_v0", "WriteTxnMarkersResponse_v0"),
        *("AlterReplicaLogDirsRequest_v0", "AlterReplicaLogDirsResponse_v0", "DescribeLogDirsRequest_v0"),
    }
