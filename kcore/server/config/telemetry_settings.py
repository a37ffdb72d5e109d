"""The settings of a broker about the metrics that clients push."""

from __future__ import annotations

from kcore.common.config_def import ConfigKey, ConfigType, at_least

TELEMETRY_KEYS = [
    ConfigKey(
        "telemetry.max.bytes", ConfigType.INT, 1 << 20, at_least(1), "Most bytes of a push, as the client sends it."
    ),
    # Kafka has a class for this among its metric.reporters.
    ConfigKey(
        "kcore.telemetry.receiver",
        ConfigType.STRING,
        "",
        None,
        "What gets the metrics that clients push: package.module.function; empty: clients push none.",
    ),
]
