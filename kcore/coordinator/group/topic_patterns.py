"""Regular expressions of clients over names of topics."""

from __future__ import annotations

from collections.abc import Callable

from kcore.common.regular_expressions import compile_regex
from kcore.errors import InvalidRegularExpression

NO_RE2 = (
    "this broker cannot match regular expressions: install kcore[regex] (the package google-re2), subscribe to names "
    "of topics, or set group.protocol=classic"
)


def compile_pattern(regex: str) -> Callable[[str], bool]:
    """Whether a whole name matches.  Raises InvalidRegularExpression, also where the package is not installed."""
    try:
        return compile_regex(regex)
    except ImportError:
        raise InvalidRegularExpression(NO_RE2) from None
    except ValueError as error:
        raise InvalidRegularExpression(
            f"SubscribedTopicRegex `{regex}` is not a valid regular expression: {error}"
        ) from None
