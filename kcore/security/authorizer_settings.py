"""The settings of an authorizer, under Kafka's names."""

from __future__ import annotations

import re

from kcore.common.config_def import ConfigDef, ConfigKey, ConfigType

_BOOLEAN, _STRING = ConfigType.BOOLEAN, ConfigType.STRING

#: Settings of an authorizer: configure() gets every setting that begins like this.
AUTHORIZER_PREFIX = "authorizer."


def _authorizer_class_problem(name: str) -> str | None:
    if name.startswith(("kafka.", "org.apache.kafka.")):
        return "a Java class cannot run here; kcore.StoredAclAuthorizer does the same, with the ACLs of the store"
    if name and not re.fullmatch(r"[^\W\d]\w*(\.[^\W\d]\w*)+", name):
        return "expected package.module.Class"
    return None


AUTHORIZER_KEYS = [
    ConfigKey(
        "authorizer.class.name",
        _STRING,
        "",
        _authorizer_class_problem,
        "Who decides what clients may do: package.module.Class of a kcore.Authorizer; empty: all may do everything.",
    ),
    ConfigKey("super.users", _STRING, "", None, "Who may do everything: User:NAME, separated by semicolons."),
    ConfigKey("allow.everyone.if.no.acl.found", _BOOLEAN, False, None, "Whether all may use what no ACL is about."),
]

AUTHORIZER_CONFIG_DEF = ConfigDef(AUTHORIZER_KEYS)
