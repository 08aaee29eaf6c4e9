"""One worker of a run on Ray: what it does beside training, and how it and whoever launched it hear of each other.

Ray Train has the training in a thread that no signal reaches. So a wish to stop comes in words: from the launcher over the
line, or from Ray, when a node is to be taken away.
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

Work = Callable[[tuple[Observer, ...], bool], Path]  # observers, and whether it was begun before, to the run's folder

_MOST_WORDS = 120
_LISTEN_S = 1.0
_DRAIN_S = 2.0  # all workers ask together, as Ray wants it


class RayLink:
    """An actor beside the launcher: events of the first worker one way, the wish to stop the other. It outlives any worker."""

    def __init__(self) -> None:
        self._events: list[Event] = []
        self._begun, self._said = False, ""
        self._stop: str | None = None
        self._end: dict[str, Any] | None = None

    def tell(self, event: Event) -> None:
        self._begun = self._begun or event["kind"] == "planned"
        self._events.append(event)

    def say(self, words: str) -> None:
        """Once, however often."""
        if words != self._said:
            self._said = words
            self._events.append(notice(words))

    def news(self) -> list[Event]:
        """Since it was last asked."""
        events, self._events = self._events, []
        return events

    def begun(self) -> bool:
        return self._begun

    def stop(self, signal_name: str) -> None:
        self._stop = signal_name

    def stopping(self) -> str | None:
        return self._stop

    def end(self, words: str, code: int) -> None:
        """For a reason that starting again would not change. The first one counts: the others follow from it."""
        self._end = self._end or {"words": words, "code": code}

    def ended(self) -> dict[str, Any] | None:
        return self._end


def notice(line: str) -> Event:
    return {"kind": "planning", "t": 0.0, "at": round(time.time(), 3), "line": line}


def train_in_worker(config: Mapping[str, Any]) -> dict[str, Any]:
    """What Ray Train calls on every worker; the first one's answer is that of the run."""
    import ray

    from flatout.world.watch.blame import from_exchange  # torch, which the line has no use for

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
                    raise RuntimeError(f"a node is taken away ({saved})") from None  # Ray counts no failure, and starts anew
                said = {"signal": stopped.signal_name, "code": stopped.exit_code, "words": str(stopped)}
                return {"stopped": said}
    except (RunBusy, PeerLost):
        raise  # those who were lost may need a moment to die
    except FlatoutError as error:
        ray.get(line.end.remote(str(error), error.exit_code))
        raise RuntimeError(str(error)) from error
    except Exception as error:
        if from_exchange(error):
            raise RuntimeError(f"lost touch with another worker ({str(error)[:_MOST_WORDS]})") from error
        if not ray.get(line.begun.remote()):
            words = "".join(traceback.format_exception(error))
            ray.get(line.end.remote(f"worker {rank} on {_host()} could not begin:\n{words}", 1))
        raise
    return {"folder": str(folder)}


def check_seen(place: Path) -> None:
    """The launcher has made this folder among the runs: who does not find it looks at another disk."""
    if not place.is_dir():
        raise StoreError(
            f"the worker on {_host()} does not see {place.parent.parent}, where the run is kept: all nodes of the cluster need "
            "to have one file system there (NFS, a shared volume). Choose a place that all of them see with --runs"
        )
    if not os.access(place, os.W_OK):
        raise StoreError(f"the worker on {_host()} may not write to {place.parent.parent}: choose another place with --runs")


def _host() -> str:
    import ray

    return f"node {ray.util.get_node_ip_address()}"


def _use_cores() -> None:
    """All that the node has, shared by its workers: Ray sets one thread for each core that was asked for, and one was."""
    import ray
    import torch

    here = ray.get_runtime_context().get_node_id()
    cores = next((node["Resources"].get("CPU", 1) for node in ray.nodes() if node["NodeID"] == here), 1)
    usable = min(int(cores), os.cpu_count() or 1)
    torch.set_num_threads(max(1, usable // ray.train.get_context().get_local_world_size()))


class Listening:
    """While a worker trains: asks it to stop when the launcher wants that, or when Ray takes one of the nodes away."""

    def __init__(self, line: Any, first: bool) -> None:
        self.drained = False
        self._line = line
        self._over = threading.Event()
        loops = [self._hear_ray, *([self._hear_launcher] if first else [])]  # what one worker knows, all know a moment later
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

        with suppress(ray.exceptions.RayError):  # the launcher is gone, and so will this worker be
            while not self._over.wait(_LISTEN_S):
                if (name := ray.get(self._line.stopping.remote())) is not None:
                    ask_to_stop(name)  # again and again: the run may not have come to where it listens

    def _hear_ray(self) -> None:
        import ray

        from flatout.engine.signals import ask_to_stop

        with suppress(Exception):  # workers that are torn down leave this exchange one by one
            while not self._over.wait(_DRAIN_S):
                if self.drained or ray.train.get_preemption_info() is not None:
                    self.drained = True
                    ask_to_stop()
