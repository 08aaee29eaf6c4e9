"""The speed of the script's real run after the trials, from the times of its last steps."""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from statistics import fmean, median

from flatout.base.units import show_seconds

_LAST, _LEAST = 200, 20  # steps
_LONG = 5.0  # times the median: the step includes an evaluation or a checkpoint
_SHORT = 0.8  # of the receipt's speed-up


@dataclass(frozen=True)
class Ran:
    steps: int
    step_s: float

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self)))

    @classmethod
    def read(cls, path: Path) -> Ran | None:
        return cls(**json.loads(path.read_text())) if path.exists() else None

    def tell(self, reference_s: float, promised: float, say: Callable[[str], None]) -> None:
        gain = reference_s / self.step_s
        say(
            f"{gain:.2f}x over {self.steps:,} steps: the last steps took {show_seconds(self.step_s)} each, unmodified "
            f"{show_seconds(reference_s)} (without evaluations and checkpoints)"
        )
        if gain < _SHORT * promised:
            say(
                f"less than the receipt's {promised:.2f}x: later steps differ from the first ones, which the trials measured, "
                "the machine is busier now (trials take turns with the unmodified script, this run does not), or a remedy was "
                "switched off (then there is a warning above)"
            )


class ScriptPace:
    def __init__(self) -> None:
        self._steps = 0
        self._ends_s: deque[float] = deque(maxlen=_LAST + 1)

    def step_over(self) -> None:
        self._steps += 1
        self._ends_s.append(time.perf_counter())

    def ran(self) -> Ran | None:
        """None after too few steps."""
        taken = [end - start for start, end in pairwise(self._ends_s)]
        if len(taken) < _LEAST:
            return None
        usual_s = median(taken)
        return Ran(self._steps, fmean(one for one in taken if one <= _LONG * usual_s))
