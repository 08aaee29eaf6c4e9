"""One tree, several renderers: a view is built once as a Doc and rendered as text or HTML for people and JSON for programs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Cell:
    """A value for programs, with its text for people. `link`: a page of the same server, for its live pages only."""

    value: Any
    text: str
    link: str = ""


@dataclass(frozen=True)
class TextLine:
    """Text for people only. `link`: as of a cell."""

    text: str = ""
    strong: bool = False
    link: str = ""


@dataclass(frozen=True)
class Fields:
    """Values for programs only, at the top level of the JSON object."""

    values: Mapping[str, Any]


@dataclass(frozen=True)
class TableColumn:
    key: str
    title: str
    right: bool = False
    shown: bool = True


@dataclass(frozen=True)
class Table:
    """JSON: a list of objects under `key`. Text: aligned columns, in which the `fold` rows are only counted."""

    key: str
    columns: Sequence[TableColumn]
    rows: Sequence[Mapping[str, Any]]
    fold: Sequence[Mapping[str, Any]] = ()
    fold_note: str = "more"
    in_json: bool = True


@dataclass(frozen=True)
class Picture:
    """An SVG image, for HTML only."""

    svg: str
    caption: str


@dataclass(frozen=True)
class Thumbnails:
    """Small JPEG images with a caption each, for HTML only."""

    photos: Sequence[tuple[bytes, str]]


@dataclass(frozen=True)
class Figure:
    """A number of the first glance. `note` says what it compares with."""

    label: str
    value: str
    note: str = ""


@dataclass(frozen=True)
class Figures:
    """The numbers at the top of a view, for people only."""

    figures: Sequence[Figure]


@dataclass(frozen=True)
class Code:
    """Text in which every letter counts, such as a recipe or a command, for people only."""

    text: str


@dataclass(frozen=True)
class Charts:
    """Curves that can be zoomed, for HTML only. A script of the page draws `data`, which it describes; without scripts the
    pictures are shown, one for each chart."""

    data: Mapping[str, Any]
    pictures: Sequence[Picture]


Node = TextLine | Fields | Table | Picture | Thumbnails | Figures | Code | Charts


@dataclass(frozen=True)
class Doc:
    nodes: Sequence[Node] = field(default_factory=tuple)


def to_data(doc: Doc) -> dict[str, Any]:
    data: dict[str, Any] = {}
    for node in doc.nodes:
        if isinstance(node, Fields):
            data.update({key: _value(value) for key, value in node.values.items()})
        elif isinstance(node, Table) and node.in_json:
            keys = [column.key for column in node.columns]
            data[node.key] = [{key: _value(row.get(key)) for key in keys} for row in (*node.rows, *node.fold)]
    return data


def to_text(doc: Doc) -> str:
    parts: list[str] = []
    for node in doc.nodes:
        if isinstance(node, TextLine):
            parts.append(node.text)
        elif isinstance(node, Table):
            parts.extend(_table_lines(node))
        elif isinstance(node, Figures):
            parts.extend(f"{one.label}: {one.value}{f' ({one.note})' if one.note else ''}" for one in node.figures)
        elif isinstance(node, Code):
            parts.append(node.text)
    return "\n".join(parts)


def _table_lines(table: Table) -> list[str]:
    shown = [column for column in table.columns if column.shown]
    cells = [[shown_text(row.get(column.key)) for column in shown] for row in table.rows]
    if cells:
        shown_cells = [[column.title for column in shown], *cells]
        widths = [max(len(row[i]) for row in shown_cells) for i in range(len(shown))]
        lines = [
            "  ".join(
                text.rjust(width) if column.right else text.ljust(width)
                for text, width, column in zip(row, widths, shown, strict=True)
            ).rstrip()
            for row in shown_cells
        ]
        if not any(column.title for column in shown):
            lines = lines[1:]
    else:
        lines = []
    if table.fold:
        lines.append(f"({len(table.fold)} {table.fold_note})")
    return lines


def _value(value: Any) -> Any:
    return value.value if isinstance(value, Cell) else value


def shown_text(value: Any) -> str:
    if isinstance(value, Cell):
        return value.text
    if value is None:
        return ""
    if isinstance(value, bool):
        return "on" if value else "off"
    return str(value)
