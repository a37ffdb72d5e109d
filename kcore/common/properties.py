"""Java's .properties files."""

from __future__ import annotations

import re


def read_properties(path: str) -> dict[str, str]:
    """The settings of a Java .properties file: key=value lines, # and ! comments, \\ at a line's end continues it."""
    with open(path, encoding="utf-8") as file:
        return parse_properties(file.read())


def parse_properties(text: str) -> dict[str, str]:
    """As read_properties(), of the file's text."""
    properties: dict[str, str] = {}
    lines = iter(text.splitlines())
    for line in lines:
        line = line.lstrip()
        if not line or line[0] in "#!":
            continue
        while line.endswith("\\") and (len(line) - len(line.rstrip("\\"))) % 2:
            line = line[:-1] + next(lines, "").lstrip()
        match = re.match(r"((?:\\.|[^\\\s=:])+)\s*[=:\s]?\s*(.*)", line)
        if match:
            properties[_unescape(match[1])] = _unescape(match[2].rstrip())
    return properties


def _unescape(text: str) -> str:
    return re.sub(r"\\(u[0-9a-fA-F]{4}|.)", _escaped, text)


def _escaped(match: re.Match[str]) -> str:
    code = match[1]
    if len(code) > 1:
        return chr(int(code[1:], 16))
    return {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}.get(code, code)
