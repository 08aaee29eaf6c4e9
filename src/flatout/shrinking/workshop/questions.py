"""Questions that a shrink asks of a process of its own: which candidate is faster, and what each one's answers cost.

What a candidate is, and how it is made and loaded, is a bench's own: files of ONNX, or programs on a device. `SOURCE` is the
package as it is served now.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from flatout.base.errors import ModelError
from flatout.machine.energy import EnergyMeter, device_energy
from flatout.packaging.package import Package, open_package
from flatout.packaging.parity import mean_error
from flatout.packaging.runtimes.runtime import Runtime
from flatout.shrinking.rows import CALIBRATING, JUDGING, TUNING
from flatout.shrinking.workshop.answers import Run, costs_of, in_batches
from flatout.shrinking.workshop.turns import in_turns, joules_of_a_row
from flatout.store.tensors import read_tensors, write_tensors

SOURCE = "source"
ASKED = "asked.json"
CPU = torch.device("cpu")
_SIZE_ROWS = 64
_POWERS = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class AnsweringBench(ABC):
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._asked = json.loads((folder / ASKED).read_text())
        self._runtimes: dict[str, Runtime] = {}

    def answer(self, question: Mapping[str, Any]) -> dict[str, Any]:
        kind = question["ask"]
        given = {name: value for name, value in question.items() if name != "ask"}
        made: dict[str, Any] = getattr(self, f"_{kind}")(**given)
        return made

    @abstractmethod
    def _loaded(self, name: str) -> Runtime:
        """The source or a candidate."""

    @abstractmethod
    def _answering(self, name: str) -> Run:
        """Outputs from which costs are computed."""

    @cached_property
    def _package(self) -> Package:
        return open_package(Path(self._asked["package"]))

    @cached_property
    def _rows(self) -> dict[str, dict[str, Tensor]]:
        return {name: read_tensors(self._folder / f"{name}.safetensors") for name in (CALIBRATING, TUNING, JUDGING)}

    @property
    def _device(self) -> torch.device:
        return CPU

    @cached_property
    def _meter(self) -> EnergyMeter:
        return device_energy(self._device)

    @property
    def _chosen(self) -> str:
        """The runtime of the source, which is known after the answer to `start`."""
        return str(json.loads((self._folder / ASKED).read_text())["runtime"])

    def _runtime(self, name: str) -> Runtime:
        if name not in self._runtimes:
            self._runtimes[name] = self._loaded(name)
        return self._runtimes[name]

    def _inputs(self, which: str) -> dict[str, Tensor]:
        return {name: one for name, one in self._rows[which].items() if name != "y"}

    # ---- questions ----

    def _permitted(self, most_s: float) -> dict[str, Any]:
        """The largest batch of the source that takes this long at most."""
        curve = self._runtime(SOURCE).curve(self._inputs(TUNING), _POWERS)
        return {"batch": max((point.batch for point in curve if point.median_s <= most_s), default=1)}

    def _time(self, first: str, second: str, batch: int, turns: int, most_s: float) -> dict[str, Any]:
        arms = in_turns(self._runtime(first), self._runtime(second), self._inputs(TUNING), batch, turns, most_s)
        return {"first": arms[0].to_dict(), "second": arms[1].to_dict()}

    def _joules(self, first: str, second: str, batch: int) -> dict[str, Any]:
        """A row's, of the device that computes; None without a meter."""
        runtimes = [self._runtime(first), self._runtime(second)]
        found = joules_of_a_row(runtimes, self._inputs(TUNING), batch, self._meter)
        return dict(zip(("first", "second"), found, strict=True))

    def _judge(self, name: str, which: str, batch: int, most: int | None = None) -> dict[str, Any]:
        """Costs are written to a file: there may be many rows."""
        rows = {column: one[:most] for column, one in self._rows[which].items()}
        costs = costs_of(self._asked["objective"], self._answering(name), rows, batch)
        file = self._folder / f"costs-{which}-{name}.npz"
        np.savez(file, **dict(costs))  # type: ignore[arg-type]
        return {"file": str(file), "rows": len(rows["y"])}

    def _sizes(self, name: str, judged: int, sizes: Sequence[int]) -> dict[str, Any]:
        """How far the outputs are from the source's in batches of each size, and in batches of `judged` on the same rows; and
        how far a row's probabilities are in the mean, by the one that differs most."""
        given = self._inputs(TUNING)
        most = max(_SIZE_ROWS, *sizes)
        rows = {column: one[:most] for column, one in given.items()}
        wanted, usual = (in_batches(self._runtime(one).run, rows, judged) for one in (SOURCE, name))
        found = {}
        for size in sizes:
            few = max(_SIZE_ROWS, size)
            made = in_batches(self._runtime(name).run, {column: one[:few] for column, one in rows.items()}, size)
            found[str(size)] = {"error": mean_error(made, wanted, few), "judged": mean_error(usual, wanted, few)}
        moved = [(usual[one].double() - wanted[one].double()).abs().flatten(1) for one in wanted if one == "probabilities"]
        return {"sizes": found, "moved": float(moved[0].amax(1).nan_to_num(nan=1.0).mean()) if moved else 0.0}

    def _outputs(self, name: str) -> dict[str, Any]:
        """On the samples, and how far batches of other sizes and the source's outputs are from them."""
        samples, run = self._package.samples, self._runtime(name).run
        made = {key: one.cpu().clone() for key, one in run(dict(samples.rows)).items()}
        far = 0.0
        for size in (1, 7, 64):
            for start in range(0, min(len(samples), 3 * size), size):
                some = run({key: column[start : start + size] for key, column in samples.rows.items()})
                far = max(far, _far(some, {key: one[start : start + size] for key, one in made.items()}))
        file = self._folder / f"outputs-{name}.safetensors"
        write_tensors(file, {key: one.contiguous() for key, one in made.items()})
        return {"file": str(file), "between_batches": far, "from_source": _far(made, samples.outputs)}


def _far(made: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> float:
    """The largest difference of numbers with fractions, relative to values above 1, as the comparison of runtimes has it."""
    worst = 0.0
    for name, one in wanted.items():
        if one.is_floating_point():
            error = (made[name].cpu().double() - one.double()).abs() / one.double().abs().clamp(min=1.0)
            if not error.isfinite().all():
                raise ModelError(f"{name} is not finite")
            worst = max(worst, float(error.max()))
    return worst
