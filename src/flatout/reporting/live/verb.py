"""`flatout watch`: serves the live page until it is told to end."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from flatout.base.errors import NotARun
from flatout.reporting.live.server import LiveServer
from flatout.reporting.live.site import LiveSite
from flatout.reporting.live.watched import Watched
from flatout.store.run_folder import find

_NICENESS = 10  # the processes that train come first


def watched_at(given: str | None, runs: Path) -> Watched:
    """A run by its name in `runs`, its folder or `last`; or a folder with runs below it; None: all of `runs`."""
    if given is None:
        return Watched(runs)
    place = Path(given)
    if given != "last" and not (runs / given).is_dir() and place.is_dir() and not (place / "run.json").exists():
        return Watched(place)
    try:
        found = find(runs, given)
    except NotARun:
        if (runs / given).is_dir():
            return Watched(runs / given)
        raise
    return Watched(found.path.parent, found.path.name)


def serve_pages(listening: socket.socket, watched: Watched, token: str | None, opened: Callable[[], None]) -> None:
    """Until an exception, such as that of Ctrl-C, ends it."""
    server = LiveServer(listening, LiveSite(watched), token)
    opened()
    with suppress(OSError):
        os.nice(_NICENESS)
    try:
        server.serve_forever(poll_interval=0.2)
    finally:
        server.end()
