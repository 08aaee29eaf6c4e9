"""From a model back through gate, package, run, code and data, as the stages that made it have noted them."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from flatout.base.files import read_json
from flatout.base.tree import Cell, Doc, Fields, Table, TableColumn, TextLine
from flatout.base.units import show_seconds
from flatout.pipelines.stages.records import DONE, StageRecord
from flatout.pipelines.stages.resolved import CURRENT, STATE, ResolvedPipeline, ResolvedStage

_FORMAT = 1
_WIDEST = 40


def lineage_of(
    stage: ResolvedStage, own: StageRecord, pipeline: ResolvedPipeline, done: Mapping[str, StageRecord]
) -> dict[str, Any]:
    """The stage and all that it rests on, the last one first. Written beside what is deployed."""
    names = [stage.name]
    for name in names:  # the list grows meanwhile
        names += [other for other in pipeline.stages[name].waits_for if other not in names]
    order = [name for name in reversed(list(pipeline.stages)) if name in names]
    known = {**done, stage.name: own}
    stages = [_of_stage(known[name]) for name in order if name in known]
    return {"flatout_lineage": _FORMAT, "pipeline": str(pipeline.asked.path), "stages": stages}


def _of_stage(record: StageRecord) -> dict[str, Any]:
    parts = record.parts
    code = {file: found["digest"] for file, found in (parts.get("code") or {}).items()}
    return {
        "stage": record.stage, "kind": record.kind, "key": record.key, "at": record.at, "seconds": record.seconds,
        "command": record.command, "verdict": record.verdict, "words": record.words, "inputs": parts.get("inputs"),
        "code": code, "versions": parts.get("versions"), "recipe": parts.get("recipe"), "asked": parts.get("asked"),
    }  # fmt: skip


def lineage_beside(model: Path) -> dict[str, Any] | None:
    """Of a package or a run that a pipeline made: beside one that was deployed, else in the state of the pipeline."""
    place = model.resolve()
    found = _read(place.parent / f"{place.name}.json")
    if found is not None and found.get("flatout_lineage") == _FORMAT:
        return found
    state = place.parent / STATE
    if not state.is_dir() or place.name == CURRENT:
        return None
    return _from_state(state, place.name)


def _from_state(state: Path, name: str) -> dict[str, Any] | None:
    """From the notes of each stage: what it used, and what wrote the files that it read, then theirs."""
    known: dict[str, StageRecord] = {}
    for path in sorted((state / "stages").glob("*.json")):
        try:
            record = StageRecord.read(read_json(path))
        except (OSError, ValueError):
            continue
        if record.status == DONE:
            known[record.stage] = record
    if name not in known:
        return None
    names = [name]
    for one in names:
        names += [other for other in _rests_on(known[one], known) if other not in names]
    judging = [
        one.stage for one in known.values() if one.kind == "gate" and (one.parts.get("asked") or {}).get("gate") in names
    ]
    return {
        "flatout_lineage": _FORMAT, "pipeline": str(state.parent),
        "stages": [_of_stage(known[one]) for one in (*judging, *names)],
    }  # fmt: skip


def _rests_on(record: StageRecord, known: Mapping[str, StageRecord]) -> Iterator[str]:
    asked = record.parts.get("asked") or {}
    for key in record.parts.get("uses") or {}:
        if asked.get(key) in known:
            yield asked[key]
    for read in record.parts.get("inputs") or {}:
        for other in known.values():
            outputs = (other.parts.get("asked") or {}).get("outputs", ())
            checked = (other.parts.get("asked") or {}).get("data") if other.kind == "data" else None
            table = checked.get("table") if isinstance(checked, dict) else checked
            if other.stage != record.stage and (read in outputs or read == table):
                yield other.stage


def lineage_nodes(found: Mapping[str, Any]) -> Iterator[Any]:
    """Lines and a table for people, and fields for programs."""
    rows = []
    for one in found.get("stages", ()):
        reads = ", ".join(f"{name} {digest[:8]}" for name, digest in (one.get("inputs") or {}).items())
        code = ", ".join(f"{name} {digest[:8]}" for name, digest in (one.get("code") or {}).items())
        rows.append(
            {
                "stage": one["stage"], "kind": one["kind"], "when": _when(one.get("at")),
                "took": Cell(one.get("seconds"), show_seconds(float(one.get("seconds") or 0))),
                "told": _short(str(one.get("words") or one.get("verdict") or "")),
                "from": _short(", ".join(filter(None, (reads, code)))),
            }
        )  # fmt: skip
    yield Fields({"pipeline": found.get("pipeline"), "stages": found.get("stages")})
    yield TextLine(f"Made by the pipeline {found.get('pipeline')}, the last stage first", strong=True)
    columns = ("stage", "kind", "when", "took", "told", "from")
    titles = {"when": "made", "told": "result", "from": "read, with the start of each digest"}
    yield Table(
        "made_by", [TableColumn(name, titles.get(name, name), right=name == "took") for name in columns], rows, in_json=False
    )


def lineage_doc(found: Mapping[str, Any]) -> Doc:
    return Doc(tuple(lineage_nodes(found)))


def _when(at: Any) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(float(at))) if at else ""


def _short(text: str) -> Cell:
    line = " ".join(text.split())
    return Cell(text, line if len(line) <= _WIDEST else line[: _WIDEST - 3] + "...")


def _read(path: Path) -> dict[str, Any] | None:
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None
