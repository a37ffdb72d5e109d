"""What a client is answered when something fails here."""

from __future__ import annotations

import logging

from kcore.common.text import plain_error
from kcore.common.topic_partition import TopicPartition
from kcore.errors import ApiError, KafkaStorageError, LogClosed, NegativeReadSize, UnknownServerError

logger = logging.getLogger(__name__)


def api_error(error: Exception, operation: str, topic_partition: TopicPartition) -> ApiError:
    """The error for the client: Kafka errors as they are (APP-17, RD-21), a failing disk, or UNKNOWN_SERVER_ERROR."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, NegativeReadSize):
        # The client's fault, and Kafka's answer to it: no error of this broker to be logged.
        return UnknownServerError(f"{topic_partition}: {error}")
    logger.error("%s: %s failed", topic_partition, operation, exc_info=error)
    if isinstance(error, (OSError, LogClosed)):
        return KafkaStorageError(f"{topic_partition}: {plain_error(error)}")
    return UnknownServerError(f"{topic_partition}: {error!r}")
