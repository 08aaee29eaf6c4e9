"""`fo.report`: writes the page of a run, or of several."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from flatout.base.errors import StoreError, UsageError
from flatout.base.html import to_html
from flatout.base.tree import Node
from flatout.reporting.page import headline, run_doc, runs_doc
from flatout.reporting.story import RunStory, read_story
from flatout.runs.record import Run
from flatout.runs.trained import CACHE
from flatout.store.run_folder import RunFolder, find

_MOST = 12


def report(*runs: Run | Path | str, out: Path | str | None = None, folder: Path | str = "runs", evaluate: bool = False) -> Path:
    """One self-contained HTML page about a run, or about several on top of each other. Returns its path.

    `runs`: a `Run`, its name in `folder`, its folder, or `last`. `out` is `NAME-report.html` here by default. The runs are
    only read; one that is still training is shown until now. `evaluate`: the page of one run also shows what its model says
    about held-out rows: what it confuses, how sure it is, where it is worst, or what it writes.
    """
    stories = read_stories(runs, Path(folder))
    judged: Sequence[Node] = ()
    if evaluate:
        check_can_evaluate(stories)
        run = runs[0] if isinstance(runs[0], Run) else Run(stories[0].folder)
        judged = judged_of(run, CACHE)
    path = page_path(stories, out)
    write(path, page_of(stories, judged))
    return path


def judged_of(run: Run, cache: Path | None) -> list[Node]:
    from flatout.reporting.judged.verb import judged_nodes  # here: a page from files alone is made sooner without it

    return judged_nodes(run, cache=cache)


def check_can_evaluate(stories: Sequence[RunStory]) -> None:
    if len(stories) > 1:
        raise UsageError(f"evaluate is for the page of one run, got {len(stories)}: make a page of each")


def read_stories(runs: Sequence[Run | Path | str], folder: Path) -> list[RunStory]:
    if not runs:
        raise UsageError("report needs a run: fo.report(run), fo.report('last') or fo.report('digits-1', 'digits-2')")
    if len(runs) > _MOST:
        raise UsageError(f"a page shows at most {_MOST} runs, got {len(runs)}: flatout runs --sort METRIC lists the best first")
    folders = [_folder(run, folder) for run in runs]
    unique = {one.path.resolve(): one for one in folders}
    return [read_story(one) for one in unique.values()]


def _folder(run: Run | Path | str, runs: Path) -> RunFolder:
    if isinstance(run, Run):
        if not run.path.is_dir():
            raise StoreError(f"{run.path} is gone: it was moved or deleted; give the run's new place")
        return run.folder
    return find(runs, str(run))


def page_of(stories: Sequence[RunStory], judged: Sequence[Node] = ()) -> str:
    if len(stories) == 1:
        return to_html(run_doc(stories[0], judged), stories[0].name)
    return to_html(runs_doc(stories), " · ".join(story.name for story in stories))


def headline_of(stories: Sequence[RunStory]) -> str:
    return headline(stories[0]) if len(stories) == 1 else f"{len(stories)} runs"


def page_path(stories: Sequence[RunStory], out: Path | str | None) -> Path:
    if out is not None:
        return Path(out)
    more = f"-and-{len(stories) - 1}-more" if len(stories) > 1 else ""
    return Path(f"{stories[0].name}{more}-report.html")


def write(path: Path, page: str) -> None:
    try:
        path.write_text(page, encoding="utf-8")
    except OSError as error:
        raise StoreError(f"can't write {path}: {os.strerror(error.errno) if error.errno else error}") from error
