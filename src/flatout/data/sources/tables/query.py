"""What is a query and what names a file: asked before anything of tables is loaded."""

from __future__ import annotations


def is_query(text: str) -> bool:
    """Whether what names a table is a query, not a file."""
    words = text.split(None, 1)
    return len(words) == 2 and words[0].lower() in ("select", "from", "with")
