"""What earlier studies of the same recipe found: a new one starts from there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from flatout.base.errors import StoreError
from flatout.tuning.study.folder import all_studies

_MOST = 200


def finished_before(runs: Path, recipe: str, metric: str) -> list[list[Any]]:
    """Points and scores of whole trials, newest last. `recipe`: the identity of recipe, code and data."""
    found: list[list[Any]] = []
    for study in all_studies(runs):
        try:
            about = study.asked["about"]
            if about["identity"] != recipe or about["metric"] != metric:
                continue
            for event in study.events():
                if event["kind"] == "rung" and event["to"] == about["total_steps"]:
                    points = dict(event["trials"])
                    found += [[points[int(number)], score] for number, score in event["scores"].items() if score is not None]
        except StoreError:
            continue  # a damaged study helps nobody; `runs show` says what is wrong with it
    return found[-_MOST:]
