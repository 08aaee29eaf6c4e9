"""Where the program starts. A pipeline with nothing to do is answered here, before the other commands are loaded."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from flatout.cli.began import BEGAN_S
from flatout.cli.places import is_completing

_SIMPLE = ("--json", "--quiet")


def main() -> None:
    is_program = sys._getframe(1).f_globals.get("__name__") == "__main__"  # otherwise the caller's process continues after us
    words = sys.argv[1:]
    began = BEGAN_S.set(time.monotonic())
    try:
        _answer(words, is_program)
    except SystemExit as ended:
        if is_program and "torch" in sys.modules and isinstance(ended.code, int | None) and _is_all_written():
            from flatout.cli.leaving import leave

            leave(ended.code or 0)
        raise
    finally:
        BEGAN_S.reset(began)


def _is_all_written() -> bool:
    """Where output can't be written the interpreter's own end says so, with an exit code of its own."""
    try:
        sys.stdout.flush()
    except (OSError, ValueError):
        return False
    return True


def _answer(words: Sequence[str], is_program: bool) -> None:
    if words[:1] == ["pipeline"] and not is_completing() and _is_up_to_date(words[1:]):
        return
    from flatout.cli.main import main as whole

    whole(is_program)


def _is_up_to_date(words: Sequence[str]) -> bool:
    """Whether nothing changed; then that was said. Anything unusual, mistakes included, is left to the command itself."""
    names = [word for word in words if word not in _SIMPLE]
    if any(word.startswith("-") for word in names):
        return False
    from flatout.base.errors import FlatoutError
    from flatout.cli.places import cache_folder
    from flatout.pipelines.stages.verb import look_at_pipeline, open_pipeline

    try:
        pipeline = open_pipeline(Path(names[0] if names else "pipeline.yaml"), names[1:], cache_folder())
        outcome = look_at_pipeline(pipeline, cache=cache_folder(), environment=os.environ)
    except (FlatoutError, OSError):
        return False
    if outcome is None or outcome.exit_code:
        return False
    from flatout.base.tree import to_data, to_text
    from flatout.cli.output import print_json
    from flatout.pipelines.stages.views import outcome_doc

    doc = outcome_doc(outcome)
    print_json(to_data(doc)) if "--json" in words else print(to_text(doc))
    return True
