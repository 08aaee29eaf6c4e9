"""`flatout` alone: what can be done with what is in this folder."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from shlex import quote
from typing import Any

from flatout.base.errors import UsageError
from flatout.base.plain_yaml import read_yaml

_STEPS = 5
_MOST_FILES, _MOST_BYTES = 200, 200_000  # that are looked at
_DATA = (".csv", ".tsv", ".parquet", ".npz", ".csv.gz", ".jsonl")
_ENDED_WELL = "finished"


def show_next_steps(here: Path) -> None:
    steps = next_steps(here)
    width = max(map(len, steps))
    print("flatout trains PyTorch models as fast as the machine allows, and proves it.\n\nWhat you can do here")
    for command, words in steps.items():
        print(f"  {command:{width}}  {words}")
    print("\nAll commands: flatout --help")


def next_steps(here: Path) -> dict[str, str]:
    """Five commands and what they do, the most useful first."""
    found: dict[str, str] = {}
    for command, words in _ideas(here):
        found.setdefault(command, words)
        if len(found) == _STEPS:
            break
    return found


def _ideas(here: Path) -> Iterator[tuple[str, str]]:
    """More than five, always."""
    recipe, data, script, package = _recipe(here), _data(here), _script(here), _package(here)
    runs = _runs(here / "runs")
    named = None if recipe is None else quote(recipe.name)
    if runs:
        last, status = runs[-1]
        if status is None:
            yield "flatout watch last", f"{last} in a browser, with curves that grow while it trains"
            if named is not None:
                yield f"flatout run {named}", "resumes a run of this recipe that was stopped"
        elif status == _ENDED_WELL:
            yield "flatout report last --evaluate", f"a page of {last}: how it was trained and how well it does"
            yield "flatout serve last", "answers over HTTP, with a page to try it on"
        else:
            yield "flatout report last", f"a page of {last}, which {status}: its curves, and what happened"
            if named is not None:
                yield f"flatout run {named}", "the same command goes on where a run was stopped"
        if named is not None:
            yield f"flatout tune {named} lr=1e-4..1e-1", "searches for a better learning rate, and judges the winner"
        if len(runs) > 1:
            yield f"flatout runs compare {quote(runs[-2][0])} last", "what differed between two runs, and what it did"
        yield "flatout export last", "a package that takes raw rows, checked against the run"
    if package is not None:
        yield f"flatout serve {quote(package)}/", "answers over HTTP, with a page to try it on"
        yield f"flatout shrink {quote(package)}/", "smaller and faster, proven as accurate"
    if named is not None:
        yield f"flatout run {named} --page", "trains, and shows it in a browser"
        yield f"flatout explain {named}", "how it would be trained here, and why"
        yield f"flatout data {named}", "faults of the data, and how fast it can be read"
        yield f"flatout find-lr {named}", "a learning rate by short trainings"
        yield f"flatout summary {named}", "layers, parameters, memory, share of a step's time"
    if data is not None:
        yield f"flatout new {quote(data)}", "writes a recipe for this file, and says what is wrong with it"
    if script is not None:
        yield f"flatout doctor {quote(script)}", "why it is slow, on which line, and what to do"
        yield f"flatout boost {quote(script)}", "tries speed-ups on it, unchanged, and proves them"
    yield "flatout demo", "trains on built-in handwritten digits and shows everything"
    yield "flatout new FILE", "writes a recipe for a table, images, text or arrays"
    yield "flatout doctor train.py", "why your own training script is slow, on which line"
    yield "flatout probe", "how fast this machine is, and what is misconfigured"
    yield "flatout env", "versions and facts, for a bug report"


def _files(here: Path) -> list[Path]:
    try:
        with os.scandir(here) as entries:
            names = sorted(one.name for one in entries if not one.name.startswith("."))
    except OSError:
        return []
    return [here / name for name in names[:_MOST_FILES]]


def _recipe(here: Path) -> Path | None:
    """The newest file that looks like a recipe."""
    found = []
    for path in _files(here):
        if path.suffix in (".yaml", ".yml") and (text := _text(path)):
            try:
                content, problems = read_yaml(text)
            except UsageError:
                continue
            if not problems and isinstance(content, dict) and "data" in content and "model" in content:
                found.append(path)
    return max(found, key=_changed, default=None)


def _data(here: Path) -> str | None:
    return next((path.name for path in _files(here) if path.name.endswith(_DATA)), None)


def _script(here: Path) -> str | None:
    for path in _files(here):
        if path.suffix == ".py" and "import torch" in (text := _text(path)) and ".backward(" in text:
            return path.name
    return None


def _package(here: Path) -> str | None:
    for path in _files(here):
        if (path / "manifest.json").is_file() and (path / "samples.safetensors").is_file():
            return path.name
    return None


def _runs(folder: Path) -> list[tuple[str, str | None]]:
    """Names with the status of each, oldest first; None: it has not ended, or was killed."""
    runs = []
    for path in _files(folder):
        about = _json(path / "run.json")
        if about is not None:
            result = _json(path / "result.json")
            runs.append((about.get("order", 0), path.name, None if result is None else str(result.get("status", "ended"))))
    return [(name, status) for _, name, status in sorted(runs, key=lambda run: (run[0], run[1]))]


def _json(path: Path) -> dict[str, Any] | None:
    """Only to guess: whoever reads a run for more checks its files."""
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def _text(path: Path) -> str:
    try:
        return path.read_bytes()[:_MOST_BYTES].decode() if path.is_file() else ""
    except (OSError, UnicodeDecodeError):
        return ""


def _changed(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0
