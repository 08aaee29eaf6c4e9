"""Writes a recipe as YAML with comments that say what was found and what can be changed."""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from flatout.base.errors import UsageError
from flatout.base.plain_yaml import read_yaml

_WIDTH = 100
_KEY = 12  # room for the key before a value
_NOTES_AT = 34  # comments start in one column up to here
_PLAIN = re.compile(r"[\w./~][\w ./*<>=()+-]*")


@dataclass(frozen=True)
class DraftLine:
    """`key: value` with a comment after it, or above it if it is long. Without a key: only a comment."""

    key: str
    value: Any = None
    note: str = ""
    depth: int = 0
    off: bool = False  # written as a comment, for the user to switch on


@dataclass(frozen=True)
class Raw:
    """A number as a person would write it: 3e-4."""

    text: str


def page(title: Sequence[str], entries: Sequence[DraftLine]) -> str:
    """The whole file."""
    texts = [_text(entry) for entry in entries]
    short = [len(text) for text in texts if "\n" not in text and len(text) <= _NOTES_AT]
    column = max(short, default=0) + 2
    lines = [f"# {line}".rstrip() for line in title]
    for entry, text in zip(entries, texts, strict=True):
        lines += _lines(entry, text, column)
    return "\n".join(lines) + "\n"


def shown(value: Any, indent: int = 0) -> str:
    """A value as YAML on one line; a list that is too long on several lines."""
    if isinstance(value, Raw):
        return value.text
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: ""}[value]
    if isinstance(value, str):
        return _word(value)
    if isinstance(value, Mapping):
        return _flow("{}", [f"{shown(key)}: {shown(inner)}" for key, inner in value.items()], indent)
    if isinstance(value, Sequence):
        return _flow("[]", [shown(item) for item in value], indent)
    return str(value)


def _word(text: str) -> str:
    """Unquoted if YAML reads it back as the same word."""
    with suppress(UsageError):
        if _PLAIN.fullmatch(text) and text == text.strip() and read_yaml(text) == (text, []):
            return text
    return json.dumps(text, ensure_ascii=not text.isprintable())


def _flow(brackets: str, items: Sequence[str], indent: int) -> str:
    """Breaks only between items: an item may have spaces."""
    whole = brackets[0] + ", ".join(items) + brackets[1]
    if len(whole) + indent + _KEY <= _WIDTH:
        return whole
    lines, line = [], ""
    for item in items:
        if line and len(line) + len(item) + 2 > _WIDTH - indent - 4:
            lines.append(line)
            line = ""
        line += (" " if line else "") + item + ","
    pad = " " * (indent + 2)
    return "\n".join([brackets[0], *(pad + one for one in [*lines, line]), " " * indent + brackets[1]])


def _text(entry: DraftLine) -> str:
    pad = "  " * entry.depth
    if not entry.key:
        return ""
    value = shown(entry.value, len(pad))
    text = f"{pad}{shown(entry.key)}:{' ' if value else ''}{value}"
    return "\n".join(f"{pad}# {line[len(pad) :]}" for line in text.split("\n")) if entry.off else text


def _lines(entry: DraftLine, text: str, column: int) -> list[str]:
    if not entry.note:
        return [text]
    if text and "\n" not in text and max(column, len(text) + 2) + 2 + len(entry.note) <= _WIDTH:
        return [f"{text.ljust(column - 2)}  # {entry.note}"]
    pad = "  " * entry.depth
    above = textwrap.wrap(entry.note, _WIDTH - len(pad) - 2)
    return [*(f"{pad}# {line}" for line in above), *([text] if text else [])]
