"""One worker of a run on Ray: its work besides training, and how it communicates with the launcher.

Ray Train runs training in a thread that no signal reaches. So requests to stop arrive as messages: from the launcher through
the link, or from Ray when a node will be taken away.
"""

from __future__ import annotations

import os
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from flatout.base.errors import FlatoutError, PeerLost, RunBusy, Stopped, StoreError
from flatout.base.events import Event, Observer

Work = Callable[[tuple[Observer, ...], bool], Path]  # (observers, was it started before) -> the run's folder

_MOST_WORDS = 120
_LISTEN_S = 1.0
_DRAIN_S = 2.0  # all workers ask at the same time, as Ray requires


class RayLink:
    """An actor next to the launcher: passes events of worker 0 one way and stop requests the other. It outlives workers."""

    def __init__(self) -> None:
        self._events: list[Event] = []
        self._begun, self._said = False, ""
        self._stop: str | None = None
        self._end: dict[str, Any] | None = None

    def tell(self, event: Event) -> None:
        self._begun = self._begun or event["kind"] == "planned"
        self._events.append(event)

    def say(self, words: str) -> None:
        """The same text is shown only once."""
        if words != self._said:
            self._said = words
            self._events.append(notice(words))

    def news(self) -> list[Event]:
        """Events since the last call."""
        events, self._events = self._events, []
        return events

    def begun(self) -> bool:
        return self._begun

    def stop(self, signal_name: str) -> None:
        self._stop = signal_name

    def stopping(self) -> str | None:
        return self._stop

    def end(self, words: str, code: int) -> None:
        """Record an error that a restart would not fix. Only the first one counts: the others are consequences."""
        self._end = self._end or {"words": words, "code": code}

    def ended(self) -> dict[str, Any] | None:
        return self._end


def notice(line: str) -> Event:
    return {"kind": "planning", "t": 0.0, "at": round(time.time(), 3), "line": line}


def train_in_worker(config: Mapping[str, Any]) -> dict[str, Any]:
    """Ray Train calls this on every worker; worker 0 returns the result of the run."""
    import ray

    from flatout.world.watch.blame import from_exchange  # imports torch, which RayLink does not need

    line, work = config["line"], config["work"]
    rank = ray.train.get_context().get_world_rank()
    try:
        check_seen(Path(config["place"]))
        _use_cores()
        if rank == 0:
            line.tell.remote({"kind": "placed", "t": 0.0, "at": round(time.time(), 3)})
        with Listening(line, rank == 0) as heard:
            try:
                folder = work((line.tell.remote,), ray.get(line.begun.remote()))
            except Stopped as stopped:
                if heard.drained:
                    saved = str(stopped).partition(";")[0]
                    raise RuntimeError(f"a node is taken away ({saved})") from None  # Ray restarts without counting a failure
                said = {"signal": stopped.signal_name, "code": stopped.exit_code, "words": str(stopped)}
                return {"stopped": said}
    except (RunBusy, PeerLost):
        raise  # lost workers may need a moment to end
    except FlatoutError as error:
        ray.get(line.end.remote(str(error), error.exit_code))
        raise RuntimeError(str(error)) from error
    except Exception as error:
        if from_exchange(error):
            raise RuntimeError(f"lost contact with another worker ({str(error)[:_MOST_WORDS]})") from error
        if not ray.get(line.begun.remote()):
            words = "".join(traceback.format_exception(error))
            ray.get(line.end.remote(f"worker {rank} on {_host()} could not start:\n{words}", 1))
        raise
    return {"folder": str(folder)}


def check_seen(place: Path) -> None:
    """The launcher created this folder: a worker that does not find it uses a different disk."""
    if not place.is_dir():
        raise StoreError(
            f"the worker on {_host()} can't see {place.parent.parent}, where the run is stored: all nodes of the cluster must "
            "share a file system (NFS, a shared volume). Choose a folder that all of them can see with --runs"
        )
    if not os.access(place, os.W_OK):
        raise StoreError(f"the worker on {_host()} can't write to {place.parent.parent}: choose another folder with --runs")


def _host() -> str:
    import ray

    return f"node {ray.util.get_node_ip_address()}"


def _use_cores() -> None:
    """Share all cores of the node among its workers: Ray sets one thread per requested core, and one was requested."""
    import ray
    import torch

    here = ray.get_runtime_context().get_node_id()
    cores = next((node["Resources"].get("CPU", 1) for node in ray.nodes() if node["NodeID"] == here), 1)
    usable = min(int(cores), os.cpu_count() or 1)
    torch.set_num_threads(max(1, usable // ray.train.get_context().get_local_world_size()))


class Listening:
    """While a worker trains: asks it to stop if the launcher wants that or Ray takes a node away."""

    def __init__(self, line: Any, first: bool) -> None:
        self.drained = False
        self._line = line
        self._over = threading.Event()
        loops = [self._hear_ray, *([self._hear_launcher] if first else [])]  # one worker passes it on to all others
        self._threads = [threading.Thread(target=loop, name="flatout-listening", daemon=True) for loop in loops]

    def __enter__(self) -> Listening:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *ended: object) -> None:
        self._over.set()

    def _hear_launcher(self) -> None:
        import ray

        from flatout.engine.signals import ask_to_stop

        with suppress(ray.exceptions.RayError):  # the launcher is gone, and this worker will end too
            while not self._over.wait(_LISTEN_S):
                if (name := ray.get(self._line.stopping.remote())) is not None:
                    ask_to_stop(name)  # repeated, because the run may not listen yet

    def _hear_ray(self) -> None:
        import ray

        from flatout.engine.signals import ask_to_stop

        with suppress(Exception):  # workers leave this exchange one by one when they are shut down
            while not self._over.wait(_DRAIN_S):
                if self.drained or ray.train.get_preemption_info() is not None:
                    self.drained = True
                    ask_to_stop()
