"""The curves of a page, as its script gets them."""

from __future__ import annotations

import json
from typing import Any


def curves_in(page: str) -> dict[str, Any]:
    """The data that the page's script draws."""
    block = page.partition('<script type="application/json" id="curves">')[2].partition("</script>")[0]
    found: dict[str, Any] = json.loads(block)
    return found


def chart(page: str, title: str) -> dict[str, Any]:
    return next(one for one in curves_in(page)["charts"] if one["title"].startswith(title))
