"""What the page of a server says about its canary, its shadow and drift, in sentences."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_MOST_NAMES = 4


def notes(status: Mapping[str, Any]) -> list[str]:
    canary = status.get("canary")
    found = [] if not canary else [_canary(canary)]
    return found + [_drift(name, one) for name, one in (status.get("drift") or {}).items()]


def _canary(canary: Mapping[str, Any]) -> str:
    asked = canary["requests"]
    shadowed = canary.get("shadowed")
    if shadowed:
        return (
            f"shadow of {canary['model']}: {shadowed['same']:,} answers are the same, {shadowed['different']:,} differ, "
            f"{shadowed['not_copied']:,} were not copied"
        )
    if canary["status"] != "running":
        return f"canary of {canary['model']}: {canary['status']} after {asked['canary']:,} requests: {canary['reason']}"
    missing = canary["not_enough_evidence_yet"]
    more = f" and {len(missing) - _MOST_NAMES} more" if len(missing) > _MOST_NAMES else ""
    return (
        f"canary of {canary['model']}: {100 * canary['share']:g}% of the requests, {asked['canary']:,} so far; "
        f"not enough evidence yet: {', '.join(missing[:_MOST_NAMES])}{more}"
    )


def _drift(name: str, drift: Mapping[str, Any]) -> str:
    effects = drift["effects"]
    if not effects:
        return f"drift of {name}: the first period is not over; {drift['rows']:,} rows so far"
    column = max(effects, key=effects.__getitem__)
    words = f"alarm: {', '.join(drift['moved'][:_MOST_NAMES])}" if drift["moved"] else "no alarm"
    return f"drift of {name}: {words}; largest move in the last period: {column} by {100 * effects[column]:.0f} points"
