"""The tables of the pages of docs/ that list the fields of what commands print with --json, and what of it they lack.

A table stands after a sentence that names its commands, and where they print several kinds of objects the `type`:

    `kcore topics list --json`, one object for each topic:

    | field | type | meaning |
    | --- | --- | --- |
    | topic | string | its name |

A field inside another is `partitions[].leader` or `cluster.id`; `config.*` is a field of any name.  docs/tools.md has
the words for types.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

DOCS = Path(__file__).parents[3] / "docs"

_HEAD = "| field | type | meaning |"
_COMMAND = re.compile(r"`kcore ([a-z ]+) --json`")
_TYPE = re.compile(r"`(\w+)`")

#: Word -> whether a value is of this type.  An object's fields, and the items of a list, are looked at one by one.
_TYPES: dict[str, Callable[[Any], bool]] = {
    "string": lambda value: isinstance(value, str),
    "integer": lambda value: isinstance(value, int) and not isinstance(value, bool),
    "number": lambda value: isinstance(value, int | float) and not isinstance(value, bool),
    "boolean": lambda value: isinstance(value, bool),
    "null": lambda value: value is None,
    "bytes": lambda value: isinstance(value, str) or (isinstance(value, dict) and value.keys() == {"hex"}),
    "value": lambda value: True,
    "object": lambda value: isinstance(value, dict),
    "list": lambda value: isinstance(value, list),
}


class Table(NamedTuple):
    """types: what the field `type` may be, empty if there is none.  fields: path -> its types; of one that may be
    missing "absent" is one of them."""

    page: str
    commands: tuple[str, ...]
    types: tuple[str, ...]
    fields: Mapping[str, tuple[str, ...]]

    def faults(self, shown: Mapping[str, Any], seen: set[tuple[str, str]]) -> Iterator[str]:
        """What of the object does not agree with the table.  seen: gets the types that were met, by path."""
        fields = {name: value for name, value in shown.items() if not self.types or name != "type"}
        yield from self._faults_of_object("", fields, seen)

    def _faults_of_object(self, path: str, shown: Mapping[str, Any], seen: set[tuple[str, str]]) -> Iterator[str]:
        below = f"{path}." if path else ""
        names = {known.removeprefix(below) for known in self.fields if known.startswith(below)}
        names = {name for name in names if not re.search(r"[.\[]", name)}
        for name, value in shown.items():
            known = name if name in names else "*" if "*" in names else None
            if known is None:
                yield f"{below}{name}: not in the table"
            else:
                yield from self._faults_of_value(f"{below}{known}", self.fields[f"{below}{known}"], value, seen)
        for name in names - {*shown, "*"}:
            if "absent" not in self.fields[f"{below}{name}"]:
                yield f"{below}{name}: not in the object"

    def _faults_of_value(
        self, path: str, types: Iterable[str], value: Any, seen: set[tuple[str, str]]
    ) -> Iterator[str]:
        found = next((name for name in types if name != "absent" and _TYPES[name.split()[0]](value)), None)
        if found is None:
            yield f"{path}: {value!r} is not: {' or '.join(types)}"
            return
        seen.add((path, found))
        if found == "object":
            yield from self._faults_of_object(path, value, seen)
        elif found.startswith("list of "):
            items = f"{path}[]"
            item_types = self.fields.get(items) or (found.removeprefix("list of ").removesuffix("s"),)
            item_types = tuple("bytes" if name == "byte" else name for name in item_types)
            for item in value:
                yield from self._faults_of_value(items, item_types, item, seen)

    def not_seen(self, seen: set[tuple[str, str]]) -> set[str]:
        """The paths of which no value was met that is more than null or an empty list."""
        met = {path for path, name in seen if name != "null"}
        return self.fields.keys() - met


def tables() -> list[Table]:
    """Of all pages."""
    pages = [DOCS / "explain.md", *sorted((DOCS / "commands").glob("*.md"))]
    return [table for page in pages for table in tables_of(page.read_text(), page.name)]


def tables_of(text: str, page: str) -> Iterator[Table]:
    before, *parts = text.split(f"\n{_HEAD}\n")
    for part in parts:
        sentence = before.strip().rpartition("\n\n")[2]
        rows = [line for line in part.split("\n\n")[0].splitlines()[1:] if line.startswith("|")]
        cells = [[cell.strip() for cell in row.strip("|").split("|", 2)] for row in rows]
        fields = {name: tuple(types.split(" or ")) for name, types, _ in cells}
        words = {word for types in fields.values() for word in types} - {"absent"}
        assert all(word.split()[0] in _TYPES for word in words), f"{page}: a type without a meaning in {words}"
        assert all(meaning for *_, meaning in cells), f"{page}: a field without a meaning"
        yield Table(
            page, tuple(_COMMAND.findall(sentence)), tuple(_TYPE.findall(sentence.partition(" type ")[2])), fields
        )
        before = part
