"""What a command prints to stdout for a program to read: strict JSON, whatever the numbers are."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any


def print_json(content: Any) -> None:
    print(json.dumps(_strict(content), indent=2, default=str, allow_nan=False))


def _strict(value: Any) -> Any:
    """JSON knows no NaN and no infinity: a metric that has no value is null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _strict(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_strict(inner) for inner in value]
    return value
