"""Where `fo.run` shows its progress: in the cell of a notebook, on a line of a terminal, or nowhere."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from flatout.base.events import Observer
from flatout.runs.answering import answer_to_ctrl_c
from flatout.world.joining import is_first


@contextmanager
def speaking(quiet: bool) -> Iterator[tuple[Observer, ...]]:
    """Observers for a run. Where nothing is shown, Ctrl-C during planning is still answered."""
    cell = None if quiet or not is_first() else notebook_cell()
    if cell is not None:
        from flatout.notebook.live_cell import LiveCell  # these load where they are used: a quiet run starts sooner

        live = LiveCell(cell)
        try:
            yield (live,)
        finally:
            live.close()
    elif not quiet and is_first() and sys.stderr.isatty():
        from rich.console import Console

        from flatout.runs.progress_lines import LiveLine

        line = LiveLine(Console(stderr=True))
        try:
            yield (line,)
        finally:
            line.close()
    else:
        yield (answer_to_ctrl_c,) if is_first() else ()


def notebook_cell() -> Callable[[str], None] | None:
    """Replaces the output of the running cell; None if this process is no kernel of a notebook."""
    ipython: Any = sys.modules.get("IPython")  # a kernel has imported it
    shell = None if ipython is None else ipython.get_ipython()
    if shell is None or not hasattr(shell, "kernel"):
        return None
    display: Any = import_module("IPython.display")
    handle = display.display(display.HTML(""), display_id=True)
    return lambda html: handle.update(display.HTML(html))
