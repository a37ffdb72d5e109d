"""What tests of programs that embed kcore use."""

from kcore.common.time import MockTime

__all__ = ["MockTime"]
