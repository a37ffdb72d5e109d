"""Settings of brokers that Kafka changes at run time and that nothing here reads: they are stored and shown.

None of them protects anything: those that do (ssl.*, sasl.enabled.mechanisms, limits of connections) are refused.
Source: DynamicBrokerConfig, DynamicListenerConfig, DynamicThreadPool, DynamicRemoteLogConfig, Kafka 3.9-4.3.
"""

from __future__ import annotations

from kcore.common.config_def import ConfigDef, ConfigKey, ConfigType, at_least, between

_KERBEROS = "There is no Kerberos here."
_LOGIN = "There is no login with OAuth here."
_TIERED = "There is no tiered storage here."

_INT, _LONG, _DOUBLE, _SHORT = ConfigType.INT, ConfigType.LONG, ConfigType.DOUBLE, ConfigType.SHORT
_MAX_LONG = 2**63 - 1

KEPT_CONFIG_DEF = ConfigDef(
    [
        ConfigKey("background.threads", _INT, 10, at_least(1), "Each task here has a thread of its own."),
        ConfigKey("remote.log.index.file.cache.total.size.bytes", _LONG, 1 << 30, at_least(1), _TIERED),
        ConfigKey("remote.log.manager.copy.max.bytes.per.second", _LONG, _MAX_LONG, at_least(1), _TIERED),
        ConfigKey("remote.log.manager.fetch.max.bytes.per.second", _LONG, _MAX_LONG, at_least(1), _TIERED),
        ConfigKey("sasl.kerberos.kinit.cmd", ConfigType.STRING, "/usr/bin/kinit", None, _KERBEROS),
        ConfigKey("sasl.kerberos.min.time.before.relogin", _LONG, 60_000, None, _KERBEROS),
        ConfigKey("sasl.kerberos.ticket.renew.jitter", _DOUBLE, 0.05, None, _KERBEROS),
        ConfigKey("sasl.kerberos.ticket.renew.window.factor", _DOUBLE, 0.8, None, _KERBEROS),
        ConfigKey("sasl.login.refresh.buffer.seconds", _SHORT, 300, between(0, 3600), _LOGIN),
        ConfigKey("sasl.login.refresh.min.period.seconds", _SHORT, 60, between(0, 900), _LOGIN),
        ConfigKey("sasl.login.refresh.window.factor", _DOUBLE, 0.8, between(0.5, 1), _LOGIN),
        ConfigKey("sasl.login.refresh.window.jitter", _DOUBLE, 0.05, between(0, 0.25), _LOGIN),
    ]
)
#: Those that each broker has for itself, and that cannot be set for all.
PER_BROKER = frozenset(name for name in KEPT_CONFIG_DEF.names() if name.startswith("sasl."))
