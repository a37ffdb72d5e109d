"""Directives for what is made from the code: `broker-settings`, `commands`, `error-codes`."""

from __future__ import annotations

import inspect
from collections.abc import Iterable

import click
from docutils import nodes
from docutils.parsers.rst import Directive

from kcore import errors
from kcore.server.config.broker_settings import KAFKA_CONFIG_DEF
from kcore.tools.commands import whole_tree
from kcore.tools.main import kcore as kcore_command


def _table(columns: list[str], rows: Iterable[list[str]]) -> nodes.table:
    """The first column is shown as code."""
    group = nodes.tgroup(cols=len(columns))
    group += [nodes.colspec(colwidth=1) for _ in columns]
    head, body = nodes.thead(), nodes.tbody()
    head += _row([nodes.paragraph(text=name) for name in columns])
    for first, *others in rows:
        code = nodes.paragraph()
        code += nodes.literal(text=first)
        body += _row([code, *(nodes.paragraph(text=text) for text in others)])
    group += [head, body]
    table = nodes.table()
    table += group
    return table


def _row(cells: list[nodes.Node]) -> nodes.row:
    row = nodes.row()
    for cell in cells:
        entry = nodes.entry()
        entry += cell
        row += entry
    return row


class BrokerSettings(Directive):
    def run(self) -> list[nodes.Node]:
        keys = [KAFKA_CONFIG_DEF.get(name) for name in sorted(KAFKA_CONFIG_DEF.names())]
        rows = ([key.name, key.type.name.lower(), str(key.default), key.doc] for key in keys)
        return [_table(["setting", "type", "default", "meaning"], rows)]


class ErrorCodes(Directive):
    def run(self) -> list[nodes.Node]:
        classes = [
            found
            for _, found in inspect.getmembers(errors, inspect.isclass)
            if issubclass(found, errors.KafkaError) and found.__module__ == errors.__name__
        ]
        rows = [
            [found.__name__, str(getattr(found, "code", "")), inspect.getdoc(found) or ""]
            for found in sorted(classes, key=lambda found: (getattr(found, "code", None) or 10_000, found.__name__))
        ]
        return [_table(["error", "code", "meaning"], rows)]


class Commands(Directive):
    def run(self) -> list[nodes.Node]:
        sections: list[nodes.Node] = []
        for words, command in whole_tree(kcore_command):
            name = f"kcore {words}"
            context = click.Context(command, info_name=name, terminal_width=100, max_content_width=100)
            section = nodes.section(ids=[name.replace(" ", "-")], names=[name])
            section += nodes.title(text=name)
            section += nodes.literal_block(text=command.get_help(context), language="none")
            sections.append(section)
        return sections


def setup(app: object) -> dict[str, bool]:
    app.add_directive("broker-settings", BrokerSettings)  # type: ignore[attr-defined]
    app.add_directive("commands", Commands)  # type: ignore[attr-defined]
    app.add_directive("error-codes", ErrorCodes)  # type: ignore[attr-defined]
    return {"parallel_read_safe": True}
