"""What workers of a Ray cluster do in the tests: they train, and the first of them may stand still until something happens."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

from flatout.base.events import Event, Observer
from flatout.engine import signals


def train(recipe: str, runs: str, stands_still: str, observers: tuple[Observer, ...], again: bool) -> Path:
    """`stands_still`, in the first attempt and once there is something to lose: `killed`, `stopped` or never."""
    from flatout.recipe.load import read_recipe
    from flatout.runs import verbs

    until = {"killed": until_killed, "stopped": until_stopped}.get(stands_still)
    more = () if until is None or again else (standing_still(Path(recipe).parent, observers, until),)
    asked = read_recipe(Path(recipe))
    return verbs.run(asked, runs=runs, observers=(*observers, *more), cache=None, planning="off").path


def standing_still(folder: Path, observers: tuple[Observer, ...], until: Callable[[], None]) -> Observer:
    saved: list[int] = []

    def stand_still(event: Event) -> None:
        if event["kind"] == "checkpoint_saved" and event["step"] > 0:
            saved.append(event["step"])
        if event["kind"] == "step" and saved and event["step"] > saved[0]:
            import ray

            (folder / "node").write_text(ray.get_runtime_context().get_node_id())
            for observer in observers:
                observer({"kind": "stands still", "step": event["step"]})
            until()
            saved.clear()

    return stand_still


def until_killed() -> None:
    threading.Event().wait()


def until_stopped() -> None:
    while not any(signals._under_way):
        threading.Event().wait(0.05)
