"""Tables of figures for people: Markdown, aligned for reading as it is."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence

from rich.box import MARKDOWN
from rich.console import Console
from rich.table import Table
from rich.text import Text


def markdown_table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    table = Table(box=MARKDOWN)
    for heading in headings:
        table.add_column(Text(heading))
    for row in rows:
        table.add_row(*map(Text, row))
    console = Console(file=io.StringIO(), width=10_000, no_color=True)
    console.print(table)
    assert isinstance(console.file, io.StringIO)
    return "\n".join(line.rstrip() for line in console.file.getvalue().splitlines() if line.strip())
