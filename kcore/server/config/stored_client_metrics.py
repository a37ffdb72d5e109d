"""StoredClientMetrics: which clients push which of their metrics, in the store (/config/client-metrics; KIP-714).

Source: ClientMetricsConfigs, Kafka 4.3.  The nodes are kcore's: no Kafka has such settings in ZooKeeper.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from kcore.common.config_def import ConfigDef, ConfigKey, ConfigType, between
from kcore.common.regular_expressions import compile_regex
from kcore.errors import InvalidConfig, InvalidRequest
from kcore.metadata import znodes
from kcore.server.config.config_changes import ConfigChanges
from kcore.server.config.stored_resource_configs import StoredResourceConfigs

METRICS, INTERVAL, MATCH = "metrics", "interval.ms", "match"
DEFAULT_INTERVAL_MS = 300_000
#: Instead of beginnings of names: every metric.
ALL_METRICS = "*"

#: Of a subscription.
CLIENT_METRICS_CONFIG_DEF = ConfigDef(
    [
        ConfigKey(
            METRICS,
            ConfigType.LIST,
            [],
            None,
            f"Beginnings of the names of the metrics that the clients push; {ALL_METRICS} for all.",
        ),
        ConfigKey(
            INTERVAL,
            ConfigType.INT,
            DEFAULT_INTERVAL_MS,
            between(100, 3_600_000),
            "How often a client pushes its metrics.",
        ),
        ConfigKey(
            MATCH,
            ConfigType.LIST,
            [],
            None,
            "Which clients push them: NAME=REGEX, all of which match; none for every client.",
        ),
    ]
)

#: What of a client an expression can be about.
ATTRIBUTES = (
    *("client_instance_id", "client_id", "client_software_name", "client_software_version"),
    *("client_source_address", "client_source_port"),
)


class StoredClientMetrics(StoredResourceConfigs):
    """A resource is a subscription: metrics, for the clients that it is about."""

    what = "client metrics subscription"
    no_name = "The name of a client metrics subscription must not be empty"
    directory = znodes.CLIENT_METRICS_CONFIGS
    config_def = CLIENT_METRICS_CONFIG_DEF

    def _check(self, changes: ConfigChanges, own: Mapping[str, str]) -> None:
        for name in changes:
            if name not in CLIENT_METRICS_CONFIG_DEF:
                expected = ", ".join(CLIENT_METRICS_CONFIG_DEF.names())
                raise InvalidRequest(f"Unknown client metrics configuration: {name} (expected {expected})")
        try:
            values = CLIENT_METRICS_CONFIG_DEF.parse(
                {name: value for name, value in changes.items() if value is not None}
            )
        except InvalidConfig as error:
            raise InvalidRequest(str(error)) from None
        matchers_of(values[MATCH])


def matchers_of(patterns: Iterable[str]) -> list[tuple[str, Callable[[str], bool]]]:
    """patterns: NAME=REGEX.  Of each, the attribute, and whether a client's value of it matches as a whole.  Raises
    InvalidConfig."""
    matchers = []
    for pattern in patterns:
        name, equals, regex = (part.strip() for part in pattern.partition("="))
        problem = f"Illegal client matching pattern: {pattern}"
        if not equals or not regex or name not in ATTRIBUTES:
            raise InvalidConfig(f"{problem} (expected NAME=REGEX, NAME one of {', '.join(ATTRIBUTES)})")
        try:
            matchers.append((name, compile_regex(regex)))
        except ImportError:
            raise InvalidConfig(
                f"{problem}: this broker cannot match regular expressions: install kcore[regex] (google-re2)"
            ) from None
        except ValueError as error:
            raise InvalidConfig(f"{problem}: {error}") from None
    return matchers
