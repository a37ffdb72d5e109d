"""Requested records that do not exist: an error or a warning, depending on option failOnDataLoss."""

from __future__ import annotations

import logging

from kcore.errors import OffsetOutOfRange

logger = logging.getLogger(__name__)


class DataLoss(OffsetOutOfRange):
    """Requested records do not exist any more."""


def report_loss(message: str, fail: bool) -> None:
    """Raises DataLoss, or logs a warning and lets the query go on."""
    if fail:
        raise DataLoss(f"{message}. With failOnDataLoss=false the query goes on without them")
    logger.warning("%s", message)
