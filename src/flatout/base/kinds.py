"""Whether what a file had is of the kinds that a dataclass declares: numbers where it has numbers, lists where it has lists."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from typing import Any


def check_kinds(kind: type, written: Mapping[str, Any]) -> None:
    """ValueError with the first thing that is of another kind."""
    from pydantic import ValidationError  # not at import: whoever prints a version needs none of it

    try:
        _checker(kind).validate_json(json.dumps(written), strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise ValueError(f"{'.'.join(map(str, first['loc'])) or 'it'}: {first['msg']}") from None


@cache
def _checker(kind: type) -> Any:
    from pydantic import TypeAdapter

    return TypeAdapter(kind)
