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


#: What an expression raises for a record that lacks a field, or has a value of another type in it.
_OF_VALUES = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)


class RecordFilter:
    """topic: of the records.  Raises UsageError for a text that is no expression or has names that nobody knows.

    A record for which the expression fails, as it lacks a field or has a text where others have a number, is not
    chosen.
    """

    def __init__(self, text: str, topic: str) -> None:
        self._topic = topic
        self._num_failed = 0
        self._has_result = False
        #: Of the first record for which the expression failed.
        self._first_failure = ""
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

    @property
    def problem(self) -> str | None:
        """What to say if the expression has failed for each record, so that it may be wrong itself."""
        if self._has_result or not self._num_failed:
            return None
        records = "the only record" if self._num_failed == 1 else f"each of {self._num_failed} records"
        return f"--where fails for {records}, so none matches: {self._first_failure}"

    def rows(self, columns: RecordColumns, partition: int, rows: Any) -> Any:
        """Of these rows (None: all) those for which the expression is true.

        Raises UsageError, which names the record, where it fails for another reason than a record's values.
        """
        import numpy as np

        rows = np.arange(len(columns)) if rows is None else rows
        fields = [self._field(name, columns, partition, rows) for name in self._names]
        chosen = np.zeros(len(rows), bool)
        for place, values in enumerate(zip(*fields, strict=True) if fields else [()] * len(rows)):
            try:
                chosen[place] = bool(eval(self._code, {"re": re, **dict(zip(self._names, values, strict=True))}))
                self._has_result = True
            except Exception as error:  # whatever the expression raises
                record = f"offset {int(columns['offset'][rows[place]])} of {self._topic}-{partition}"
                reason = f"{type(error).__name__}: {error}"
                if not isinstance(error, _OF_VALUES):
                    raise UsageError(f"--where fails at {record}: {reason}") from None
                self._num_failed += 1
                self._first_failure = self._first_failure or f"{reason} at {record}"
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
