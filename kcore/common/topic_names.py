"""Names of internal topics, and what a topic may be called.

Source: org.apache.kafka.common.internals.Topic, Kafka 3.9.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from kcore.errors import InvalidTopicException

GROUP_METADATA_TOPIC = "__consumer_offsets"
TRANSACTION_STATE_TOPIC = "__transaction_state"
#: Topics that only coordinators write to.
INTERNAL_TOPICS = frozenset({GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC})
SHARE_GROUP_STATE_TOPIC = "__share_group_state"
CLUSTER_METADATA_TOPIC = "__cluster_metadata"
MAX_NAME_LENGTH = 249

_LEGAL = re.compile(r"[a-zA-Z0-9._-]+")


def validate(name: str) -> None:
    """Raises InvalidTopicException, with Kafka's reason."""
    reason = None
    if not name:
        reason = "the empty string is not allowed"
    elif name in (".", ".."):
        reason = f"'{name}' is not allowed"
    elif len(name) > MAX_NAME_LENGTH:
        reason = f"the length of '{name}' is longer than the max allowed length {MAX_NAME_LENGTH}"
    elif not _LEGAL.fullmatch(name):
        reason = f"'{name}' contains one or more characters other than ASCII alphanumerics, '.', '_' and '-'"
    if reason is not None:
        raise InvalidTopicException(f"Topic name is invalid: {reason}")


def is_legal(name: str) -> bool:
    try:
        validate(name)
    except InvalidTopicException:
        return False
    return True


def is_internal(name: str) -> bool:
    return name in INTERNAL_TOPICS


def colliding_topics(name: str, existing: Iterable[str]) -> list[str]:
    """Existing topics whose metrics would have the same name, where '.' becomes '_'."""
    if "." not in name and "_" not in name:
        return []
    key = name.replace(".", "_")
    return sorted(other for other in existing if other != name and other.replace(".", "_") == key)
