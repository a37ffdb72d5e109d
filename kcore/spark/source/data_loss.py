"""Records that were asked for and are not there: an error or a warning, as option failOnDataLoss says."""

from __future__ import annotations

import logging

from kcore.errors import OffsetOutOfRange

logger = logging.getLogger(__name__)


class DataLoss(OffsetOutOfRange):
    """Records that were asked for are not there any more."""


def report_loss(message: str, fail: bool) -> None:
    """Raises DataLoss, or warns and lets the query go on."""
    if fail:
        raise DataLoss(f"{message}. With failOnDataLoss=false the query goes on without them")
    logger.warning("%s", message)
