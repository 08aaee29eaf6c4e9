"""A step takes at most 1% longer with trackers than without: they read the run's log in processes of their own."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from typing import Any

import torch
from evidence import Report, options, take_turns

import flatout as fo
from flatout.base.events import Event

WITH, WITHOUT = "tensorboard, csv and jsonl", "no tracker"
TRACKERS = ("tensorboard", "csv", "jsonl")


def recipe(steps: int) -> fo.Recipe:
    """A small model on one core, with the log points of a long run: the trackers have another core."""
    pins = {"device": "cpu", "threads": 1, "tier": "resident", "checkpoint_every": "end"}
    return fo.Recipe(
        data=fo.data.digits(), model={"mlp": {"hidden": [512, 512, 512]}}, batch=256, lr=1e-3, budget=f"{steps} steps",
        evaluate=None, settings=pins,
    )  # fmt: skip


def step_s(steps: int, tracks: tuple[str, ...], *, after_s: float) -> Callable[[], float]:
    """Seconds of a step, from a log point after the trackers have started until the last one."""

    def measure() -> float:
        events: list[Event] = []
        with tempfile.TemporaryDirectory() as runs:
            how: dict[str, Any] = {"runs": runs, "fresh": True, "cache": None, "planning": "off", "quiet": True}
            fo.run(recipe(steps), **how, track=tracks, observers=[events.append])
        points = [event for event in events if event["kind"] == "step" and event["elapsed_s"] >= after_s]
        spent = points[-1]["elapsed_s"] - points[0]["elapsed_s"]
        return float(spent / (points[-1]["step"] - points[0]["step"]))

    return measure


def steps_of(seconds: float) -> int:
    """So many that a run takes about that long."""
    began_s = time.perf_counter()
    step_s(200, (), after_s=0.0)()
    first_s = time.perf_counter() - began_s
    return max(400, round(200 * seconds / first_s))


def main() -> int:
    asked = options(__doc__, repeats=7).parse_args()
    report = Report("trackers", str(__doc__), torch.device("cpu"))
    steps = 600 if asked.smoke else steps_of(4.0 if asked.quick else 14.0)
    after_s = 0.0 if asked.smoke else 2.0
    arms: dict[str, Callable[[], float]] = {
        WITH: step_s(steps, TRACKERS, after_s=after_s),
        WITHOUT: step_s(steps, (), after_s=after_s),
    }
    conditions: dict[str, Any] = {"steps": steps, "counted after": f"{after_s} s", "trackers": list(TRACKERS)}
    for name, values in take_turns(arms, 2 if asked.quick or asked.smoke else asked.repeats, asked.within).items():
        report.arm(name, "s a step", values)
        report.arm(f"{name}, steps/s", "steps/s", [1 / value for value in values])
    report.conditions = conditions
    report.ratio("rate with trackers over the rate without", f"{WITH}, steps/s", f"{WITHOUT}, steps/s", at_least=0.99)
    return report.finish(asked)


if __name__ == "__main__":
    raise SystemExit(main())
