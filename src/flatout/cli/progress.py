"""Progress of a run on the command line: a live line on a terminal, plain lines elsewhere. Both only read events."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console

from flatout.base.events import Observer
from flatout.runs.answering import answer_to_ctrl_c
from flatout.runs.progress_lines import LiveLine, PlainLines


@contextmanager
def progress_view(quiet: bool = False) -> Iterator[tuple[Observer, ...]]:
    """Prints progress to stderr, since stdout is for results. Restores the terminal afterwards."""
    console = Console(stderr=True)
    if quiet:
        yield (answer_to_ctrl_c,)
    elif console.is_terminal:
        line = LiveLine(console)
        try:
            yield (line,)
        finally:
            line.close()
    else:
        yield (PlainLines(),)
