"""Random numbers and ids.  A part that needs them is passed a Random, so that a test or a simulation can seed it."""

from __future__ import annotations

from random import Random, SystemRandom
from uuid import UUID

#: The operating system's.  Thread-safe; a forked child does not repeat its parent's values.
SYSTEM_RANDOM: Random = SystemRandom()


def random_uuid(random: Random) -> UUID:
    """A UUID of version 4, from 16 bytes of the source."""
    return UUID(bytes=random.randbytes(16), version=4)
