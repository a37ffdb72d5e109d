"""How many files this process may keep open."""

from __future__ import annotations

import logging
import resource

from kcore.common.text import plain_error

logger = logging.getLogger(__name__)


def raise_open_files_limit() -> None:
    """Each segment keeps a file open, and the soft limit is often 1,024: take what the hard one allows, for good."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (OSError, ValueError) as error:  # macOS: no more than kern.maxfilesperproc
            logger.info("the limit of open files stays at %d: %s", soft, plain_error(error))
