"""A Doc as one self-contained HTML page: no fonts, links or requests, and no script except our own for charts.

All content is escaped as text, and a content security policy keeps the browser from running or loading anything else. A live
page is the same page with a second script, which takes news from where the page came from.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Mapping, Sequence
from hashlib import sha256
from html import escape
from pathlib import Path
from typing import Any

from flatout.base.tree import (
    Cell,
    Charts,
    Code,
    Doc,
    Fields,
    Figures,
    Node,
    Picture,
    Table,
    TableColumn,
    TextLine,
    Thumbnails,
    shown_text,
)

_STYLE = """
:root { color-scheme: light dark; --page: #fff; --ink: #1f2328; --quiet: #59636e; --rule: #d1d9e0; --soft: #f6f8fa;
  --c0: #2563eb; --c1: #c2410c; --c2: #15803d; --c3: #9333ea; --c4: #b45309; --c5: #0e7490; --c6: #be185d; --c7: #4d7c0f; }
@media (prefers-color-scheme: dark) { :root { --page: #0d1117; --ink: #e6edf3; --quiet: #9198a1;
  --rule: #3d444d; --soft: #151b23;
  --c0: #60a5fa; --c1: #fb923c; --c2: #4ade80; --c3: #c084fc; --c4: #fbbf24; --c5: #22d3ee; --c6: #f472b6; --c7: #a3e635; } }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 72rem; margin: 2rem auto; padding: 0 1rem;
  background: var(--page); color: var(--ink); }
h1 { font-size: 1.5rem; margin: 0 0 .6rem; overflow-wrap: anywhere; }
h2 { font-size: 1.1rem; margin: 2rem 0 .6rem; overflow-wrap: anywhere; }
p { margin: .3rem 0; white-space: pre-wrap; overflow-wrap: anywhere; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; margin: .6rem 0; }
th, td { text-align: left; vertical-align: top; padding: .25rem 1.2rem .25rem 0; border-bottom: 1px solid var(--rule); }
th { font-weight: 600; } .right { text-align: right; font-variant-numeric: tabular-nums; }
td.right { white-space: nowrap; }
a { color: var(--c0); } #live-said { color: var(--c1); font-weight: 600; }
summary { cursor: pointer; color: var(--quiet); }
figure { display: inline-block; vertical-align: top; max-width: 100%; margin: 1.2rem 1rem 1.2rem 0; }
.photo { margin: .4rem .8rem .4rem 0; min-width: 7rem; font-size: .85rem; }
figure img { max-width: 100%; } figcaption { width: 0; min-width: 100%; color: var(--quiet); }
pre { background: var(--soft); border: 1px solid var(--rule); border-radius: 6px; padding: .6rem .8rem; margin: .6rem 0;
  font: 13px/1.5 ui-monospace, monospace; white-space: pre-wrap; overflow-wrap: anywhere; }
.figures { display: grid; grid-template-columns: repeat(auto-fill, minmax(12rem, 1fr)); gap: .6rem;
  margin: 1rem 0; padding: 0; }
.figures div { border: 1px solid var(--rule); border-radius: 6px; background: var(--soft); padding: .5rem .8rem; }
.figures dt { color: var(--quiet); font-size: .85rem; } .figures dd { margin: 0; overflow-wrap: anywhere; }
.figures dd:nth-of-type(1) { font-size: 1.2rem; font-weight: 600; }
.figures dd:nth-of-type(2) { color: var(--quiet); font-size: .85rem; }
@media print { :root { color-scheme: light; --page: #fff; --ink: #000; --quiet: #444; --rule: #ccc; --soft: #fff;
  --c0: #2563eb; --c1: #c2410c; --c2: #15803d; --c3: #9333ea; --c4: #b45309; --c5: #0e7490; --c6: #be185d; --c7: #4d7c0f; }
  body { margin: 0; max-width: none; } figure, tr, .figures div { break-inside: avoid; }
  h2 { break-after: avoid; } }
"""
_CHART_STYLE = """
.tools { display: flex; flex-wrap: wrap; gap: .4rem; align-items: center; margin: .6rem 0; color: var(--quiet); }
.tools button { font: inherit; color: inherit; background: none; border: 1px solid var(--rule); border-radius: 6px;
  padding: .1rem .7rem; cursor: pointer; }
.tools button[aria-pressed=true]:not(.key) { background: var(--c0); border-color: var(--c0); color: var(--page); }
.charts { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(30rem, 100%), 1fr)); gap: .4rem 1.6rem; }
.chart { display: block; margin: .6rem 0; min-width: 0; position: relative; }
.chart figcaption { width: auto; min-width: 0; display: flex; flex-wrap: wrap; gap: .1rem .9rem;
  color: var(--ink); font-size: .9rem; }
.chart figcaption b { flex: 1 0 auto; }
.chart svg { display: block; width: 100%; touch-action: pan-y; cursor: crosshair; user-select: none; }
.chart text { font: 12px system-ui, sans-serif; fill: var(--quiet); }
.chart .grid { stroke: var(--rule); stroke-opacity: .6; } .chart path { fill: none; stroke-width: 1.5; stroke-linejoin: bevel; }
.chart .mark { stroke: var(--quiet); stroke-dasharray: 2 3; } .chart .level { stroke-dasharray: 6 4; }
.chart .brush { fill: var(--c0); fill-opacity: .15; } .chart .cursor { stroke: var(--quiet); }
.chart .key { font: inherit; border: 0; background: none; padding: 0; color: var(--quiet); cursor: pointer; }
.key::before { content: ""; display: inline-block; width: .7rem; height: .7rem; border-radius: 2px; margin-right: .35rem;
  background: var(--own); } .key.log::before { display: none; } .key[aria-pressed=false] { opacity: .4; }
.tip { position: absolute; pointer-events: none; background: var(--page); border: 1px solid var(--rule); border-radius: 6px;
  padding: .2rem .5rem; font-size: .8rem; white-space: pre; z-index: 1; box-shadow: 0 2px 8px #0003; }
@media print { .tools, .key.log { display: none !important; } }
"""
# Nothing in the page can run or be loaded, even if markup got past the escaping.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
_CHARTS, _LIVE = (Path(__file__).with_name(name) for name in ("charts.js", "live.js"))


def to_html(doc: Doc, title: str) -> str:
    code = _CHARTS.read_text(encoding="utf-8") if any(isinstance(node, Charts) for node in doc.nodes) else ""
    return _page(title, part_html(doc), code)


def to_live_html(before: Mapping[str, Doc], charts: Charts, after: Mapping[str, Doc], title: str) -> str:
    """The parts before and after the curves have names, by which the watcher replaces them."""
    code = _CHARTS.read_text(encoding="utf-8") + _LIVE.read_text(encoding="utf-8")
    body = ['<p id="live-said" role="status" hidden></p>', *_divisions(before), _charts(charts), *_divisions(after)]
    return _page(title, "\n".join(body), code, more_policy="; connect-src 'self'")


def part_html(doc: Doc) -> str:
    """The body of a page, or a part of it."""
    return "\n".join(part for node in doc.nodes if (part := _node(node)))


def _divisions(parts: Mapping[str, Doc]) -> list[str]:
    return [f'<div id="live-{escape(name)}">{part_html(doc)}</div>' for name, doc in parts.items()]


def _page(title: str, body: str, code: str, more_policy: str = "") -> str:
    policy, style, script = _POLICY, _STYLE, ""
    if code:
        known = b64encode(sha256(code.encode()).digest()).decode()
        policy = f"{_POLICY}; script-src 'sha256-{known}'{more_policy}"
        style, script = _STYLE + _CHART_STYLE, f"<script>{code}</script>\n"
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{escape(policy)}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{style}</style>\n</head>\n"
        f"<body>\n<h1>{escape(title)}</h1>\n{body}\n{script}</body>\n</html>\n"
    )


def _node(node: Node) -> str:
    if isinstance(node, TextLine):
        tag = "h2" if node.strong else "p"
        return f"<{tag}>{_linked(node.text, node.link)}</{tag}>" if node.text else ""
    if isinstance(node, Table):
        return _table(node)
    if isinstance(node, Picture):
        return _picture(node)
    if isinstance(node, Thumbnails):
        return "".join(_photo(content, caption) for content, caption in node.photos)
    if isinstance(node, Figures):
        return _figures(node)
    if isinstance(node, Code):
        return f"<pre>{escape(node.text)}</pre>"
    if isinstance(node, Charts):
        return _charts(node)
    assert isinstance(node, Fields)
    return ""


def _figures(node: Figures) -> str:
    parts = []
    for one in node.figures:
        note = f"<dd>{escape(one.note)}</dd>" if one.note else ""
        parts.append(f"<div><dt>{escape(one.label)}</dt><dd>{escape(one.value)}</dd>{note}</div>")
    return f'<dl class="figures">{"".join(parts)}</dl>'


def _charts(node: Charts) -> str:
    pictures = "".join(_picture(one, ' loading="lazy"') for one in node.pictures)  # the script removes them unseen
    # a data block: browsers do not run it, and without < nothing in it can end it
    data = json.dumps(node.data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    return f'<div class="charts">{pictures}</div>\n<script type="application/json" id="curves">{data}</script>'


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
    lines = ["".join(_value_cell(column, row.get(column.key)) for column in columns) for row in rows]
    body = "\n".join(f"<tr>{line}</tr>" for line in lines)
    return f'<div class="wide"><table>{head}<tbody>\n{body}\n</tbody></table></div>'


def _cell(tag: str, column: TableColumn, text: str, link: str = "") -> str:
    aligned = ' class="right"' if column.right else ""
    return f"<{tag}{aligned}>{_linked(text, link)}</{tag}>"


def _value_cell(column: TableColumn, value: Any) -> str:
    return _cell("td", column, shown_text(value), value.link if isinstance(value, Cell) else "")


def _linked(text: str, link: str) -> str:
    return f'<a href="{escape(link)}">{escape(text)}</a>' if link else escape(text)


def _photo(content: bytes, caption: str) -> str:
    source = "data:image/jpeg;base64," + b64encode(content).decode()
    return f'<figure class="photo"><img src="{source}" alt=""><figcaption>{escape(caption)}</figcaption></figure>'


def _picture(picture: Picture, when: str = "") -> str:
    """As an <img>, not as markup: browsers run no scripts inside images."""
    source = "data:image/svg+xml;base64," + b64encode(picture.svg.encode()).decode()
    caption = escape(picture.caption)
    return f'<figure><img src="{source}" alt="{caption}"{when}><figcaption>{caption}</figcaption></figure>'
