"""Settings of client libraries for the brokers of a test."""

from __future__ import annotations

from typing import Any

#: A client that has lost a broker, or asks for a leader that is not there yet, tries again after so long.
_BACKOFF_MS = 10
#: A consumer sees topics and partitions that are made after its subscription within so long.
_METADATA_MS = 500
#: A consumer learns of a rebalance with its next heartbeat.
_HEARTBEAT_MS = 300


class ClientSettings:
    """Each method returns a new dict; its keyword arguments are further settings, and replace the defaults.

    Consumers read from the first record.
    """

    @property
    def bootstrap_servers(self) -> str:
        """host:port of each broker, separated by commas."""
        raise NotImplementedError

    def confluent(self, **settings: Any) -> dict[str, Any]:
        """For a producer or an admin client of confluent-kafka; in names of `settings` _ stands for each dot, but in
        log_level and those of callbacks (error_cb, on_delivery), which have it themselves."""
        defaults = {"bootstrap_servers": self.bootstrap_servers, "reconnect_backoff_ms": _BACKOFF_MS}
        return {_librdkafka_name(key): value for key, value in (defaults | settings).items()}

    def confluent_consumer(self, group_id: str, **settings: Any) -> dict[str, Any]:
        """For a consumer of confluent-kafka.  With group_protocol="consumer" the broker says how often a member sends
        a heartbeat: group.consumer.heartbeat.interval.ms."""
        defaults = _consumer(group_id) | {"topic_metadata_refresh_interval_ms": _METADATA_MS}
        if settings.get("group_protocol") == "consumer":
            del defaults["heartbeat_interval_ms"]
        return self.confluent(**defaults | settings)

    def aiokafka(self, **settings: Any) -> dict[str, Any]:
        """For AIOKafkaProducer(**...) or AIOKafkaAdminClient(**...)."""
        return {"bootstrap_servers": self.bootstrap_servers, "retry_backoff_ms": _BACKOFF_MS} | settings

    def aiokafka_consumer(self, group_id: str, **settings: Any) -> dict[str, Any]:
        """For AIOKafkaConsumer("topic", **...)."""
        return self.aiokafka(**_consumer(group_id) | {"metadata_max_age_ms": _METADATA_MS} | settings)

    def kafka_python(self, **settings: Any) -> dict[str, Any]:
        """For KafkaProducer(**...) or KafkaAdminClient(**...) of kafka-python."""
        backoff = {"reconnect_backoff_ms": _BACKOFF_MS, "retry_backoff_ms": _BACKOFF_MS}
        return {"bootstrap_servers": self.bootstrap_servers} | backoff | settings

    def kafka_python_consumer(self, group_id: str, **settings: Any) -> dict[str, Any]:
        """For KafkaConsumer("topic", **...) of kafka-python."""
        return self.kafka_python(**_consumer(group_id) | {"metadata_max_age_ms": _METADATA_MS} | settings)

    def faststream(self, **settings: Any) -> dict[str, Any]:
        """For KafkaBroker(**...) of faststream.kafka and of faststream.confluent."""
        timing = {"retry_backoff_ms": _BACKOFF_MS, "metadata_max_age_ms": _METADATA_MS}
        # It takes a str for the address of one broker.
        return {"bootstrap_servers": self.bootstrap_servers.split(",")} | timing | settings

    def faststream_subscriber(self, group_id: str, **settings: Any) -> dict[str, Any]:
        """For @broker.subscriber("topic", **...) of both."""
        return _consumer(group_id) | settings


def _librdkafka_name(key: str) -> str:
    has_underscores = key == "log_level" or key.endswith("_cb") or key.startswith("on_")
    return key if has_underscores else key.replace("_", ".")


def _consumer(group_id: str) -> dict[str, Any]:
    """In Kafka's names, which all the libraries have."""
    return {"group_id": group_id, "auto_offset_reset": "earliest", "heartbeat_interval_ms": _HEARTBEAT_MS}
