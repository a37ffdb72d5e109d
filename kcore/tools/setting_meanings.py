"""What a setting means, from the definitions by which kcore's brokers check it."""

from __future__ import annotations

from typing import NamedTuple

from kcore.common.config_def import ConfigKey
from kcore.common.text import nearest
from kcore.log.log_config import BROKER_SYNONYMS, LOG_CONFIG_DEF
from kcore.server.config.broker_settings import KAFKA_CONFIG_DEF, RECONFIGURABLE
from kcore.server.config.ignored_settings import IGNORED_NAMES, PROTECTIVE
from kcore.server.config.kept_settings import KEPT_CONFIG_DEF
from kcore.tools.command_line import UsageError


class Meaning(NamedTuple):
    """applies_to: "topics" or "brokers".  default: None for none.  note: where it can be set."""

    name: str
    applies_to: str
    type: str | None
    default: str | None
    meaning: str
    note: str

    def text(self) -> str:
        kind = "" if self.type is None else f", {self.type}, default {'none' if self.default is None else self.default}"
        return "\n  ".join(filter(None, [f"{self.name}: of {self.applies_to}{kind}", self.meaning, self.note]))


def meanings_of(name: str) -> list[Meaning]:
    """As a setting of topics, and as one of brokers.  Raises UsageError with the nearest name for one of neither."""
    found = []
    if name in LOG_CONFIG_DEF:
        brokers = [broker_name for broker_name, _ in BROKER_SYNONYMS.get(name, ())]
        note = f"Topics without it have that of their brokers: {', '.join(brokers)}." if brokers else ""
        found.append(_meaning(LOG_CONFIG_DEF[name], "topics", note))
    if name in KAFKA_CONFIG_DEF:
        note = "It is read when the broker starts."
        if name in RECONFIGURABLE:
            note = "It can be changed while brokers run: kcore configs set --broker ID, or --default for all."
        found.append(_meaning(KAFKA_CONFIG_DEF[name], "brokers", note))
    if not found and name in IGNORED_NAMES:
        effect = "a broker that has it does not start" if PROTECTIVE.match(name) else "it is accepted and has no effect"
        note = "A running broker stores and shows it." if name in KEPT_CONFIG_DEF else ""
        found.append(Meaning(name, "brokers", None, None, f"Kafka's brokers have it. In kcore {effect}.", note))
    if not found:
        known = {key.name for definition in (LOG_CONFIG_DEF, KAFKA_CONFIG_DEF) for key in definition} | IGNORED_NAMES
        raise UsageError(f"Kafka has no setting {name!r}{nearest(name, sorted(known))}")
    return found


def _meaning(key: ConfigKey, applies_to: str, note: str) -> Meaning:
    return Meaning(key.name, applies_to, key.type.name.lower(), key.format(key.default), key.doc, note)
