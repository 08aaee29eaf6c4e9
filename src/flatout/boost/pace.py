"""How fast a run went that nobody looked at: what a step took in the end, when a receipt was long written."""

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
_LONG = 5.0  # times the usual: an evaluation or a checkpoint came between
_SHORT = 0.8  # of what was promised


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
            f"{self.steps:,} steps; the last took {show_seconds(self.step_s)} each, without what came between them, and "
            f"{show_seconds(reference_s)} as the script is: {gain:.2f}x"
        )
        if gain < _SHORT * promised:
            say(
                f"that is less than the receipt's {promised:.2f}x: later steps do something else than the first ones that were "
                "tried, or a remedy was taken back, which a warning above says"
            )


class ScriptPace:
    def __init__(self) -> None:
        self._steps = 0
        self._ends_s: deque[float] = deque(maxlen=_LAST + 1)

    def step_over(self) -> None:
        self._steps += 1
        self._ends_s.append(time.perf_counter())

    def ran(self) -> Ran | None:
        """None after too few steps to tell."""
        taken = [end - start for start, end in pairwise(self._ends_s)]
        if len(taken) < _LEAST:
            return None
        usual_s = median(taken)
        return Ran(self._steps, fmean(one for one in taken if one <= _LONG * usual_s))
