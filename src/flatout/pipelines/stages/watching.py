"""`--watch`: run again when an input changes, when a stage's `when` is due, or when a server has seen drift."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from flatout.base.errors import FlatoutError, UsageError
from flatout.base.units import show_seconds
from flatout.pipelines.stages.due import DueAt, due
from flatout.pipelines.stages.outcomes import PipelineOutcome
from flatout.pipelines.stages.records import StageRecords
from flatout.pipelines.stages.resolved import ResolvedPipeline, expanded
from flatout.pipelines.stages.verb import run_pipeline

_LOOK_S, _RETRY_S = 1.0, 60.0
Seen = dict[str, tuple[int, int, int]]


def watch_pipeline(
    path: Path,
    opened: Callable[[], ResolvedPipeline],
    *,
    cache: Path,
    environment: Mapping[str, str],
    say: Callable[[str], None],
    told: Callable[[PipelineOutcome], None],
) -> None:
    """Never returns. A mistake in the file, or a stage that fails, is said, and the next change is waited for."""
    pipeline = opened()
    while True:
        tried = time.time()
        before = _seen(path, pipeline)
        try:
            told(run_pipeline(pipeline, cache=cache, environment=environment, say=say))
        except FlatoutError as error:
            say(f"flatout: {error}")
        say(f"waiting for a change of {len(before)} files{_next_words(pipeline)}; Ctrl-C ends this")
        while not (why := _reason(path, pipeline, before, tried)):
            time.sleep(_LOOK_S)
        say(why)
        try:
            pipeline = opened()
        except FlatoutError as error:
            say(f"flatout: {error}")


def _reason(path: Path, pipeline: ResolvedPipeline, before: Seen, tried: float) -> str:
    now = _seen(path, pipeline)
    if now != before:
        while (later := _settled(path, pipeline)) != now:  # whoever writes may not be done
            now = later
        changed = [name for name in {**before, **now} if before.get(name) != now.get(name)]
        return f"{pipeline.shown(Path(changed[0]))} changed" if changed else ""
    for name, one in _due(pipeline):
        if time.time() >= max(one.at, tried + _RETRY_S if one.at <= tried else one.at):
            return f"{name}: {one.why}"
    return ""


def _settled(path: Path, pipeline: ResolvedPipeline) -> Seen:
    time.sleep(_LOOK_S)
    return _seen(path, pipeline)


def _due(pipeline: ResolvedPipeline) -> Iterator[tuple[str, DueAt]]:
    """Stages with a `when`, and when each has to run again. A stage whose file is damaged was said to fail, and waits."""
    records = StageRecords(pipeline.state)
    for name, stage in pipeline.stages.items():
        if stage.asked.when is not None:
            last = records.last(name)
            with suppress(UsageError):
                yield name, DueAt(0.0, "never ran here") if last is None else due(stage.asked.when, last.at, pipeline.home)


def _next_words(pipeline: ResolvedPipeline) -> str:
    found = list(_due(pipeline))
    times = [(max(one.at - time.time(), 0.0), name) for name, one in found if one.at < math.inf]
    words = [f"{min(times)[1]} in {show_seconds(min(times)[0])}"] if times else []
    return "".join(f", or {one}" for one in [*words, *dict.fromkeys(one.waits_for for _, one in found if one.at == math.inf)])


def _seen(path: Path, pipeline: ResolvedPipeline) -> Seen:
    """Of everything that stages read and no stage writes: what the file system says of it."""
    outputs = [output for stage in pipeline.stages.values() for output in stage.outputs]
    found: Seen = {}
    _note(path, found)
    for stage in pipeline.stages.values():
        recipe = () if stage.recipe_file is None else (stage.recipe_file,)
        for read in (*stage.reads, *stage.code, *recipe):
            for place in expanded(read):
                if not any(place.is_relative_to(output) or output.is_relative_to(place) for output in outputs):
                    _note(place, found)
    for folder in dict.fromkeys(code.parent for stage in pipeline.stages.values() for code in stage.code):
        for module in folder.rglob("*.py"):  # what the scripts import; whether it matters, their keys say
            _note(module, found)
    return found


def _note(place: Path, found: Seen) -> None:
    try:
        about = place.stat()
        if place.is_dir():
            for folder, _, names in os.walk(place):
                for name in names:
                    inner = os.stat(os.path.join(folder, name))
                    found[os.path.join(folder, name)] = inner.st_mtime_ns, inner.st_size, inner.st_ino
        else:
            found[str(place)] = about.st_mtime_ns, about.st_size, about.st_ino
    except OSError:
        return
