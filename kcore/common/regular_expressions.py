"""Regular expressions of strangers: RE2, which needs time in proportion to the text whatever the expression is
(docs/decisions/0029)."""

from __future__ import annotations

from collections.abc import Callable

#: Of a compiled expression.  With RE2's own limit of 8 MiB a text of 249 characters can take 36 ms, with this 10 ms.
_MAX_MEMORY = 256 << 10


def compile_regex(regex: str) -> Callable[[str], bool]:
    """Whether a whole text matches.  Raises ValueError with what is wrong; ImportError where there is no RE2."""
    import re2

    options = re2.Options()
    options.log_errors = False
    options.never_capture = True
    options.max_mem = _MAX_MEMORY
    try:
        pattern = re2.compile(regex, options)
    except re2.error as error:
        (reason,) = error.args
        raise ValueError(reason.decode(errors="replace") if isinstance(reason, bytes) else reason) from None
    return lambda text: pattern.fullmatch(text.encode()) is not None
