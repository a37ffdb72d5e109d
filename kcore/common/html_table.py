"""Tables in HTML, which notebooks show for the last value of a cell (`_repr_html_`)."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from kcore.common.text import printable

#: Rows of a table at most; the last line says how many there are besides.
MOST_ROWS = 20


def html_table(
    title: str, columns: Sequence[str], rows: Sequence[Sequence[object]], *, count: int | None = None
) -> str:
    """A table with its title above it.  Numbers stand on the right, with their digits in groups; all text is escaped.

    count: how many rows there are, if `rows` are only the first ones; at most MOST_ROWS are shown.
    """
    shown = rows[:MOST_ROWS]
    more = (len(rows) if count is None else count) - len(shown)
    head = "".join(f'<th style="text-align:left">{_text(name)}</th>' for name in columns)
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in shown)
    if more > 0:
        body += f'<tr><td colspan="{len(columns)}" style="text-align:left">and {more:,} more</td></tr>'
    return (
        f"<div><strong>{_text(title)}</strong><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _cell(value: object) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        return f'<td style="text-align:right">{value:,}</td>'
    return f'<td style="text-align:left">{_text("" if value is None else str(value))}</td>'


def _text(text: str) -> str:
    return escape(printable(text))
