"""Tells SQL queries from file names, without loading the code of tables."""

from __future__ import annotations


def is_query(text: str) -> bool:
    """Whether a text is a query, not a file name."""
    words = text.split(None, 1)
    return len(words) == 2 and words[0].lower() in ("select", "from", "with")
