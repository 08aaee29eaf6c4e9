"""watch: the live page of runs. And the watcher beside a run, for `run --page`."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flatout.base.errors import FlatoutError, StoreError, UsageError

if TYPE_CHECKING:
    from flatout.base.events import Event, Observer

_LAST_NEWS_S = 3.0


def watch(
    what: Annotated[
        str | None,
        typer.Argument(
            metavar="[RUN|FOLDER]", help="A run: its name, its folder, or `last`; or a folder with runs.", show_default=False
        ),
    ] = None,
    host: Annotated[str, typer.Option("--host", help="The address; 0.0.0.0 is reached from other machines.")] = "127.0.0.1",
    port: Annotated[
        int | None,
        typer.Option("--port", min=0, max=65535, help="Default: 8321, or a free one if it is taken.", show_default=False),
    ] = None,
    token_file: Annotated[
        Path | None,
        typer.Option(
            "--token-file",
            help="Viewers need the token in this file. Default: a new one, if --host is not local.",
            show_default=False,
        ),
    ] = None,
    runs: Annotated[Path, typer.Option("--runs", help="The folder with all runs.")] = Path("runs"),
    listening: Annotated[int | None, typer.Option("--listening", hidden=True, help="A socket that was opened before.")] = None,
) -> None:
    """Show runs in a browser while they train: curves that grow, and all that a report has.

    It only reads the runs' folders, and can't slow or stop them. Without a name: all runs below the folder of runs.

    Example: flatout watch

    Example: flatout watch last --port 9000
    """
    import socket

    from flatout.cli.serve import read_token
    from flatout.reporting.live.address import address, is_private, new_token, open_port

    if what is None and listening is None and not runs.is_dir():
        raise StoreError(f"{runs} is no folder: start a run first, or name a run or a folder with runs: flatout watch FOLDER")
    opened = socket.socket(fileno=listening) if listening is not None else open_port(host, port, _say)
    with opened:
        from flatout.reporting.live.verb import serve_pages, watched_at

        watched = watched_at(what, runs)
        token = read_token(token_file)
        if token is None and not is_private(opened):
            token = new_token()
        shown = address(opened, token)

        def tell() -> None:
            print(f"watching {watched.root if watched.only is None else watched.only}: {shown}", flush=True)
            if not is_private(opened):
                _say("everyone who has this address can see the runs; what is sent is not encrypted")
            _say("it only reads; Ctrl-C ends it")

        try:
            serve_pages(opened, watched, token, tell)
        except KeyboardInterrupt:
            _say("ended")


@contextmanager
def live_page(runs: Path) -> Iterator[tuple[Observer, ...]]:
    """A watcher in a process of its own, as long as the run trains. A run trains without it if it can't be started."""
    from flatout.base.child import Child, Printed
    from flatout.reporting.live.address import address, open_port, url_of

    try:
        listening = open_port("127.0.0.1", None, _say)
        listening.listen()
    except (FlatoutError, OSError) as error:
        _say(f"no live page: {error}")
        yield ()
        return
    listening.set_inheritable(True)
    handle = listening.fileno()
    command = [sys.executable, "-m", "flatout", "watch", "--runs", str(runs), "--listening", str(handle)]
    url = address(listening, None)

    def tell(event: Event) -> None:
        if event.get("kind") == "planned":
            _say(f"live page: {url.rstrip('/')}{url_of(str(event.get('run')))}")

    with listening, Child(command, output=Printed.DROPPED, errors=Printed.DROPPED, passed=[handle]) as watcher:
        listening.close()
        try:
            yield (tell,)
        finally:
            watcher.signal(signal.SIGTERM)  # its viewers get the last news
            watcher.wait(_LAST_NEWS_S)


def check_page_is_possible(on: str | None) -> None:
    if on is not None:
        raise UsageError("--page is for runs on this machine; for a cluster: flatout watch where its folder of runs is")


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
