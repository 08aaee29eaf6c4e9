"""Rows of a packaged table as requests, with the answers that the package itself gives."""

from __future__ import annotations

import datetime as dt
import json
from typing import Any

from packaged_runs import Exported
from servers import AskedRow


def table_requests(exported: Exported, name: str, count: int = 12, others: dict[str, Exported] | None = None) -> list[AskedRow]:
    """To the model of this name; "" if it is the only one. `others` are packages of other versions, by version; without them
    the answers count for every version."""
    rows = exported.rows(count)
    answers = {version: _answers(one, rows) for version, one in ({"": exported} if others is None else others).items()}
    path = f"/models/{name}/predict" if name else "/predict"
    return [
        AskedRow(
            path,
            json.dumps({key: _plain(column[place]) for key, column in rows.items()}).encode(),
            {version: made[place] for version, made in answers.items()},
        )
        for place in range(count)
    ]


def _answers(exported: Exported, rows: dict[str, Any]) -> list[dict[str, Any]]:
    columns = {key: column if isinstance(column, list) else column.tolist() for key, column in
               exported.package().predict(rows).items()}  # fmt: skip
    return [dict(zip(columns, map(_plain, values), strict=True)) for values in zip(*columns.values(), strict=True)]


def _plain(value: Any) -> Any:
    return value.isoformat() if isinstance(value, dt.datetime) else value
