"""Studies in the list of `flatout runs`."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flatout.base.errors import StoreError
from flatout.base.tree import Cell, Doc, Fields, Node, Table, TableColumn, TextLine
from flatout.base.units import show_metric, show_seconds
from flatout.tuning.study.finals import RECIPE
from flatout.tuning.study.folder import StudyFolder, all_studies
from flatout.tuning.views.doc import study_status
from flatout.tuning.views.history import read_history

_COLUMNS = (
    TableColumn("name", "study"), TableColumn("status", "status"), TableColumn("created", "began"),
    TableColumn("trials", "trials", right=True), TableColumn("seconds", "time", right=True),
    TableColumn("score", "winner, trained again"), TableColumn("metric", "", shown=False),
)  # fmt: skip


def studies_doc(runs: Path) -> Doc | None:
    """Oldest first; None if there are none."""
    rows: list[Mapping[str, Any]] = []
    whys: list[str] = []
    for folder in all_studies(runs):
        try:
            rows.append(_row(folder))
        except (StoreError, KeyError, TypeError) as error:
            rows.append({"name": folder.name, "status": "damaged"})
            whys.append(str(error) if isinstance(error, StoreError) else f"{folder.path} can't be used: {error!r}")
    if not rows:
        return None
    nodes: list[Node] = [Table("studies", _COLUMNS, rows), *(TextLine(f"damaged: {why}") for why in whys)]
    return Doc((*nodes, *([Fields({"damaged_studies": whys})] if whys else [])))


def _row(folder: StudyFolder) -> dict[str, Any]:
    asked, result, history = folder.asked, folder.result, read_history(folder)
    created = float(asked["created"])
    row: dict[str, Any] = {
        "name": folder.name,
        "status": study_status(folder),
        "created": Cell(created, time.strftime("%Y-%m-%d %H:%M", time.localtime(created))),
        "trials": len(history.trials),
        "seconds": Cell(history.seconds, show_seconds(history.seconds)),
        "metric": history.metric,
    }
    if result is not None:
        mean, recipe = result["again"]["mean"], result["recipe"]["mean"]
        compared = "the recipe as it was" if result["winner"]["number"] == RECIPE else f"recipe {show_metric(recipe)}"
        words = f"{history.metric} {show_metric(mean)}, {compared}"
        row["score"] = Cell(mean, words)
    return row
