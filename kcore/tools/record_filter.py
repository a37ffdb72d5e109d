"""RecordFilter: the records for which a Python expression is true (`kcore consume --where`)."""

from __future__ import annotations

import ast
import builtins
import json
import re
from collections.abc import Callable, Sequence
from typing import Any

from kcore.common.text import nearest
from kcore.record.columns import RecordColumns
from kcore.record.record_lines import header_lists, numbers, strings
from kcore.tools.command_line import UsageError

#: What an expression may use, beside Python's builtins and the module `re`.
RECORD_NAMES = ("topic", "partition", "offset", "timestamp", "key", "value", "headers", "json")


class RecordFilter:
    """topic: of the records.  Raises UsageError for a text that is no expression or has names that nobody knows."""

    def __init__(self, text: str, topic: str) -> None:
        self._topic = topic
        try:
            tree = ast.parse(text.strip(), "--where", "eval")
            self._code = compile(tree, "--where", "eval")
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            reason = error.msg if isinstance(error, SyntaxError) else str(error)
            raise UsageError(f"--where {text!r} is no Python expression: {reason}") from None
        names = [node for node in ast.walk(tree) if isinstance(node, ast.Name)]
        used = {name.id for name in names}
        known = {*RECORD_NAMES, "re", *dir(builtins)}
        known |= {name.id for name in names if not isinstance(name.ctx, ast.Load)}
        known |= {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}
        unknown = sorted(used - known)
        if unknown:
            of_a_record = f"a record has {', '.join(RECORD_NAMES)}{nearest(unknown[0], RECORD_NAMES)}"
            raise UsageError(f"--where {text!r}: {unknown[0]} is not known; {of_a_record}")
        self._names = [name for name in RECORD_NAMES if name in used]

    def rows(self, columns: RecordColumns, partition: int, rows: Any) -> Any:
        """Of these rows (None: all) those for which the expression is true.

        Raises UsageError, which names the record, where it fails.
        """
        import numpy as np

        rows = np.arange(len(columns)) if rows is None else rows
        fields = [self._field(name, columns, partition, rows) for name in self._names]
        chosen = np.zeros(len(rows), bool)
        for place, values in enumerate(zip(*fields, strict=True) if fields else [()] * len(rows)):
            try:
                chosen[place] = bool(eval(self._code, {"re": re, **dict(zip(self._names, values, strict=True))}))
            except Exception as error:  # whatever the expression raises
                offset = int(columns["offset"][rows[place]])
                raise UsageError(
                    f"--where fails at offset {offset} of {self._topic}-{partition}: {type(error).__name__}: {error}"
                ) from None
        return rows[chosen]

    def _field(self, name: str, columns: RecordColumns, partition: int, rows: Any) -> Sequence[Any]:
        match name:
            case "topic" | "partition":
                return [self._topic if name == "topic" else partition] * len(rows)
            case "offset" | "timestamp":
                return numbers(columns[name], rows)
            case "headers":
                return [{_text(k): _text(v) for k, v in pairs} for pairs in header_lists(columns, rows)]
        made_of: Callable[[bytes | None], Any] = _json if name == "json" else _text
        return [made_of(data) for data in strings(columns["key" if name == "key" else "value"], rows)]


def _text(data: bytes | None) -> str | bytes | None:
    """As text where it is UTF-8."""
    try:
        return None if data is None else data.decode()
    except UnicodeDecodeError:
        return data


def _json(data: bytes | None) -> Any:
    """None also for what is no JSON."""
    try:
        return None if data is None else json.loads(data)
    except (ValueError, RecursionError):
        return None
