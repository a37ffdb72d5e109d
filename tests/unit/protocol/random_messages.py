"""Random instances of any message for any version, made from its own declaration, and every message there is."""

import pkgutil
import random
import uuid
from importlib import import_module

import kcore.protocol.messages as messages
from kcore.common.topic_partition import ZERO_UUID
from kcore.protocol.schema import Message

LIMITS = {"int8": 7, "int16": 15, "int32": 31, "int64": 63}


def all_messages() -> list[type[Message]]:
    """Every message class, sorted by name."""
    classes = set()
    for info in pkgutil.iter_modules(messages.__path__):
        module = import_module(f"{messages.__name__}.{info.name}")
        classes.update(
            value for value in vars(module).values() if isinstance(value, type) and issubclass(value, Message)
        )
    return sorted(classes - {Message}, key=lambda cls: cls.__name__)


def all_versions(least: int = 0) -> list[tuple[type[Message], int]]:
    return [(cls, v) for cls in all_messages() for v in range(max(least, cls.min_version), cls.max_version + 1)]


def case_id(case) -> str:
    return f"{case.__name__}" if isinstance(case, type) else f"v{case}"


def in_range(versions, version) -> bool:
    return versions is not None and versions[0] <= version <= versions[1]


def is_flexible(cls, version) -> bool:
    return cls.flexible_version is not None and version >= cls.flexible_version


def random_struct(rng: random.Random, cls, version: int, size: int = 3):
    """An instance whose fields are random where the version has them and default where it has not.

    Error codes are real codes and times are moderate, because kio parses them.  size: the longest list.
    """
    made = cls()
    for field in cls._layout.fields:
        if in_range(field.versions, version) and not (field.tag >= 0 and rng.random() < 0.4):
            setattr(made, field.name, random_value(rng, field, version, size))
    return made


def random_value(rng, field, version, size):
    if in_range(field.nullable, version) and rng.random() < 0.25:
        return None
    if field.type_name == "array":
        return [random_primitive(rng, field.element_name, field, version, size) for _ in range(rng.randint(0, size))]
    return random_primitive(rng, field.type_name, field, version, size)


def random_primitive(rng, type_name, field, version, size):
    if type_name == "float64":
        return rng.choice([0.0, -1.5, 1e300, rng.uniform(-1e9, 1e9)])
    if type_name == "struct":
        return random_struct(rng, field.struct, version, size)
    if field.name.endswith("error_code"):
        return rng.randint(-1, 119)
    if field.name.endswith(("_ms", "timestamp")):
        return rng.choice([0, 1, 5_000, rng.randrange(2**31)])
    if type_name in LIMITS:
        bits = LIMITS[type_name]
        return rng.choice([-(1 << bits), (1 << bits) - 1, 0, -1, 1, rng.getrandbits(bits), -rng.getrandbits(bits)])
    return {
        "bool": lambda: rng.random() < 0.5,
        "uuid": lambda: rng.choice([ZERO_UUID, uuid.UUID(int=rng.getrandbits(128))]),
        "string": lambda: "".join(rng.choices("abc-.\u00e9\u4e16\U0001f600", k=rng.choice([0, 1, 5, 130]))),
        "bytes": lambda: rng.randbytes(rng.choice([0, 1, 7, 300])),
        "records": lambda: rng.randbytes(rng.choice([0, 61, 200])),
    }[type_name]()
