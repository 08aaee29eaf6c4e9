"""Check that values read from a file have the types that a dataclass declares."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from typing import Any


def check_kinds(kind: type, written: Mapping[str, Any]) -> None:
    """Raises ValueError for the first value of a wrong type."""
    from pydantic import ValidationError  # imported late: slow, and not needed to print a version

    try:
        _checker(kind).validate_json(json.dumps(written), strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise ValueError(f"{'.'.join(map(str, first['loc'])) or 'it'}: {first['msg']}") from None


@cache
def _checker(kind: type) -> Any:
    from pydantic import TypeAdapter

    return TypeAdapter(kind)
