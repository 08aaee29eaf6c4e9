"""A Doc as one self-contained HTML page: no scripts, fonts or links. All content is escaped as text."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from flatout.base.tree import Doc, Fields, Node, Picture, Table, TableColumn, TextLine, shown_text

_STYLE = """
:root { color-scheme: light dark; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 72rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.4rem; } h2 { font-size: 1.1rem; margin: 1.6rem 0 .6rem; }
p { margin: .3rem 0; white-space: pre-wrap; overflow-wrap: anywhere; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; margin: .6rem 0; }
th, td { text-align: left; vertical-align: top; padding: .25rem 1.2rem .25rem 0; border-bottom: 1px solid #8884; }
th { font-weight: 600; } .right { text-align: right; font-variant-numeric: tabular-nums; }
td.right { white-space: nowrap; }
summary { cursor: pointer; opacity: .75; }
figure { display: inline-block; vertical-align: top; max-width: 100%; margin: 1.2rem 1rem 1.2rem 0; }
figure img { max-width: 100%; } figcaption { width: 0; min-width: 100%; opacity: .75; }
"""
# Nothing in the page can run or be loaded, even if markup got past the escaping.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"


def to_html(doc: Doc, title: str) -> str:
    body = "\n".join(part for node in doc.nodes if (part := _node(node)))
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{escape(_POLICY)}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{_STYLE}</style>\n</head>\n"
        f"<body>\n<h1>{escape(title)}</h1>\n{body}\n</body>\n</html>\n"
    )


def _node(node: Node) -> str:
    if isinstance(node, TextLine):
        tag = "h2" if node.strong else "p"
        return f"<{tag}>{escape(node.text)}</{tag}>" if node.text else ""
    if isinstance(node, Table):
        return _table(node)
    if isinstance(node, Picture):
        return _picture(node)
    assert isinstance(node, Fields)
    return ""


def _table(table: Table) -> str:
    shown = [column for column in table.columns if column.shown]
    parts = [_rows(shown, table.rows)] if table.rows else []
    if table.fold:
        summary = f"<summary>{len(table.fold)} {escape(table.fold_note)}</summary>"
        parts.append(f"<details>{summary}{_rows(shown, table.fold)}</details>")
    return "\n".join(parts)


def _rows(columns: Sequence[TableColumn], rows: Sequence[Mapping[str, Any]]) -> str:
    titles = "".join(_cell("th", column, column.title) for column in columns)
    head = f"<thead><tr>{titles}</tr></thead>" if any(column.title for column in columns) else ""
    lines = ["".join(_cell("td", column, shown_text(row.get(column.key))) for column in columns) for row in rows]
    body = "\n".join(f"<tr>{line}</tr>" for line in lines)
    return f'<div class="wide"><table>{head}<tbody>\n{body}\n</tbody></table></div>'


def _cell(tag: str, column: TableColumn, text: str) -> str:
    aligned = ' class="right"' if column.right else ""
    return f"<{tag}{aligned}>{escape(text)}</{tag}>"


def _picture(picture: Picture) -> str:
    """As an <img>, not as markup: browsers run no scripts inside images."""
    source = "data:image/svg+xml;base64," + b64encode(picture.svg.encode()).decode()
    caption = escape(picture.caption)
    return f'<figure><img src="{source}" alt="{caption}"><figcaption>{caption}</figcaption></figure>'
