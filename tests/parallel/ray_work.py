"""What workers of a Ray cluster do in the tests: they train, and the first of them may stand still until something happens."""

from __future__ import annotations

import threading
from pathlib import Path

from flatout.base.events import Event, Observer
from flatout.engine import signals


def train(recipe: str, runs: str, stands_still: tuple[str, ...], observers: tuple[Observer, ...], again: bool) -> Path:
    """Stands still after the first new checkpoint: in the first attempt until the first of `stands_still`, later the last."""
    from flatout.recipe.load import read_recipe
    from flatout.runs import verbs

    until = stands_still[-1 if again else 0] if stands_still else None
    more = () if until is None else (standing_still(Path(recipe).parent, observers, until),)
    asked = read_recipe(Path(recipe))
    return verbs.run(asked, runs=runs, observers=(*observers, *more), cache=None, planning="off").path


def standing_still(folder: Path, observers: tuple[Observer, ...], until: str) -> Observer:
    saved: list[int] = []

    def stand_still(event: Event) -> None:
        if event["kind"] == "checkpoint_saved" and event["step"] > 0:
            saved.append(event["step"])
        if event["kind"] == "step" and saved and event["step"] > saved[0]:
            import ray

            (folder / "node").write_text(ray.get_runtime_context().get_node_id())
            for observer in observers:
                observer({"kind": "stands still", "step": event["step"], "until": until})
            WAITS[until]()
            saved.clear()

    return stand_still


def until_killed() -> None:
    threading.Event().wait()


def until_stopped() -> None:
    while not any(signals._under_way):
        threading.Event().wait(0.05)


WAITS = {"killed": until_killed, "stopped": until_stopped}
