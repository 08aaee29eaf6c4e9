"""What was fitted, from the folder of a run of an earlier version: it kept some of it, and the recipe has the rest."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flatout.data.fitted.array_rows import ArrayHost
from flatout.data.fitted.device import DevicePart
from flatout.data.fitted.fitted import Fitted, column_from_json
from flatout.data.fitted.host import HostPart
from flatout.data.fitted.hosts import host_from_json


def fitted_of_earlier_run(kept: Mapping[str, Any], asked: Any, folder: Path) -> Fitted:
    """`kept` as data.json has it; `asked`: the data of the recipe, paths relative to `folder`."""
    schema = {name: column_from_json(column) for name, column in kept["columns"].items()}
    written = asked if isinstance(asked, Mapping) else {}
    reading = dict(kept["reading"])
    host: HostPart
    if kept["preparation"] is not None:
        host = host_from_json("table", kept["preparation"])
    else:
        names = None if kept["labels"] is None else tuple(kept["labels"])
        host = ArrayHost(
            {name: (column["dtype"], tuple(column["shape"])) for name, column in kept["columns"].items()},
            written.get("layout"),
            names,
            kept["classes"],
            kept["vocabulary"],
        )
    return Fitted(host, DevicePart.from_json(kept["prepare"]), schema, reading)
