"""Regular expressions of clients over names of topics: RE2, which needs time in proportion to the name whatever the
expression is (docs/decisions/0029)."""

from __future__ import annotations

from collections.abc import Callable

from kcore.errors import InvalidRegularExpression

#: Of a compiled expression.  With RE2's own limit of 8 MiB a name of 249 characters can take 36 ms, with this 10 ms.
_MAX_MEMORY = 256 << 10

NO_RE2 = (
    "this broker cannot match regular expressions: install kcore[regex] (the package google-re2), subscribe to names "
    "of topics, or set group.protocol=classic"
)


def compile_pattern(regex: str) -> Callable[[str], bool]:
    """Whether a whole name matches.  Raises InvalidRegularExpression, also where the package is not installed."""
    try:
        import re2
    except ImportError:
        raise InvalidRegularExpression(NO_RE2) from None
    options = re2.Options()
    options.log_errors = False
    options.never_capture = True
    options.max_mem = _MAX_MEMORY
    try:
        pattern = re2.compile(regex, options)
    except re2.error as error:
        (reason,) = error.args
        text = reason.decode(errors="replace") if isinstance(reason, bytes) else reason
        raise InvalidRegularExpression(
            f"SubscribedTopicRegex `{regex}` is not a valid regular expression: {text}"
        ) from None
    return lambda name: pattern.fullmatch(name.encode()) is not None
