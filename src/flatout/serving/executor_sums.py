"""What executors say about their models, added up over all that ever ran."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_SUMMED = ("requests", "rows", "batches", "refused", "failed", "late", "queue_s", "copy_s", "compute_s")


def added(sums: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """Counts add up; what is measured now is taken from `more`."""
    made = {**sums, **{name: value for name, value in more.items() if name not in ("number", "name")}}
    for name in _SUMMED:
        made[name] = sums.get(name, 0) + more.get(name, 0)
    for name in ("reasons", "batch_rows"):
        counts = dict(sums.get(name, {}))
        for key, count in more.get(name, {}).items():
            counts[key] = counts.get(key, 0) + count
        made[name] = counts
    return made
