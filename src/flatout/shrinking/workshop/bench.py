"""Answers the questions of a shrink in a process of its own: makes candidates, times them, and computes what they cost.

Candidates are files in the workshop's folder; `SOURCE` is the package as it is served now.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from flatout.base.errors import ModelError
from flatout.packaging.onnx_libraries import library
from flatout.packaging.package import Package, open_package
from flatout.packaging.parity import compare, mean_error
from flatout.packaging.runtimes.choice import runtime_named
from flatout.packaging.runtimes.eager import EagerRuntime
from flatout.packaging.runtimes.onnxruntime_runtime import OnnxRuntime
from flatout.packaging.runtimes.runtime import Runtime
from flatout.shrinking.changes.all import CHANGES, TRAINED, comes_first
from flatout.shrinking.rows import CALIBRATING, JUDGING, TUNING
from flatout.shrinking.step import ShrinkStep, ShrinkSteps
from flatout.shrinking.training.lessons import Lessons
from flatout.shrinking.workshop.answers import Run, costs_of, in_batches, with_log_probabilities
from flatout.shrinking.workshop.material import PackageMaterial
from flatout.shrinking.workshop.profile import profiled
from flatout.shrinking.workshop.turns import in_turns
from flatout.store.tensors import read_tensors, write_tensors

if TYPE_CHECKING:
    import onnx

SOURCE, BASE = "source", "base"
ASKED = "asked.json"
_SIZE_ROWS = 64
_POWERS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
_CPU = torch.device("cpu")


class CandidateBench:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._asked = json.loads((folder / ASKED).read_text())
        self._runtimes: dict[str, Runtime] = {}
        self._bases: dict[ShrinkSteps, tuple[PackageMaterial, dict[str, Any]]] = {}
        self._made_from: dict[str, PackageMaterial] = {}

    def answer(self, question: Mapping[str, Any]) -> dict[str, Any]:
        kind = question["ask"]
        given = {name: value for name, value in question.items() if name != "ask"}
        made: dict[str, Any] = getattr(self, f"_{kind}")(**given)
        return made

    # ---- what is there ----

    @cached_property
    def _package(self) -> Package:
        return open_package(Path(self._asked["package"]))

    @cached_property
    def _rows(self) -> dict[str, dict[str, Tensor]]:
        return {name: read_tensors(self._folder / f"{name}.safetensors") for name in (CALIBRATING, TUNING, JUDGING)}

    @cached_property
    def _material(self) -> PackageMaterial:
        return self._material_in(self._package.path / "model.onnx", self._folder)

    def _material_in(self, model: Path, folder: Path) -> PackageMaterial:
        return PackageMaterial(model, folder, self._inputs(CALIBRATING), self._inputs(TUNING))

    @cached_property
    def _lessons_of_run(self) -> Lessons:
        cache = self._asked["cache"]
        return Lessons(self._package, self._rows[CALIBRATING], self._folder, None if cache is None else Path(cache))

    def _runtime(self, name: str) -> Runtime:
        if name not in self._runtimes:
            if name == SOURCE:
                chosen = json.loads((self._folder / ASKED).read_text())["runtime"]  # after the answer to `start`
                made = runtime_named(chosen).load(self._package.parts(_CPU))
            else:
                made = OnnxRuntime(self._file(name), _CPU)
            made.tune(self._inputs(TUNING))
            self._runtimes[name] = made
        return self._runtimes[name]

    def _file(self, name: str) -> Path:
        return self._folder / f"{name}.onnx"

    def _inputs(self, which: str) -> dict[str, Tensor]:
        return {name: one for name, one in self._rows[which].items() if name != "y"}

    # ---- questions ----

    def _start(self, batch: int) -> dict[str, Any]:
        """Which runtime serves the source, by their times. And the layers of each change, or why it does not apply."""
        package = self._package
        parts = package.parts(_CPU)
        seconds: dict[str, float] = {}
        why: dict[str, str] = {}
        loaded: dict[str, Runtime] = {}
        kinds: tuple[type[Runtime], ...] = (EagerRuntime, OnnxRuntime)
        for kind in kinds:
            reason = kind.why_not(parts)
            if reason is None:
                made = kind.load(parts)
                parity = compare(made.run, package.samples, parts.allowed)
                reason = parity.problem
            if reason is None:
                made.tune(self._inputs(TUNING))
                loaded[kind.name] = made
            else:
                why[kind.name] = reason
        if OnnxRuntime.name not in loaded:
            return {"seconds": seconds, "why": why, "changes": {}, "bytes": 0}
        for name, made in loaded.items():
            arm, _ = in_turns(made, made, self._inputs(TUNING), batch, 8, 0.5)
            seconds[name] = float(np.median(arm.blocks_s))
        model = self._material.model
        changes = {
            name: {value: {"why_not": one.why_not(model, value), "layers": one.layers(model)} for value in one.values}
            for name, one in CHANGES.items()
        }
        return {"seconds": seconds, "why": why, "changes": changes, "bytes": model.ByteSize()}

    def _permitted(self, most_s: float) -> dict[str, Any]:
        """The largest batch of the source that takes this long at most."""
        curve = self._runtime(SOURCE).curve(self._inputs(TUNING), _POWERS)
        return {"batch": max((point.batch for point in curve if point.median_s <= most_s), default=1)}

    def _lessons(self) -> dict[str, Any]:
        """Of each change that trains: how long that takes here, or why it does not apply."""
        try:
            lessons = self._lessons_of_run
        except (Exception, SystemExit) as error:  # the recipe's own code and data may do anything
            why = f"the run can't be trained on from here: {str(error).strip().partition(chr(10))[0]}"
            return {"changes": {name: {value: {"why_not": why} for value in one.values} for name, one in TRAINED.items()}}
        about: dict[str, dict[str, Any]] = {name: {} for name in TRAINED}
        for name, one in TRAINED.items():
            for value in one.values:
                why_not = one.why_not(lessons, value)
                takes_s = 0.0 if why_not else lessons.predicted_s(one.samples(lessons, value))
                about[name][value] = {"why_not": why_not, "takes_s": takes_s}
        return {"changes": about}

    def _make(self, steps: Sequence[Mapping[str, Any]], name: str) -> dict[str, Any]:
        state = tuple(ShrinkStep.from_dict(one) for one in steps)
        last = state[-1]
        material, notes = self._after(state if comes_first(last.change) else state[:-1])
        model = material.model
        if not comes_first(last.change):
            made = CHANGES[last.change].make(material, last.value, last.floats)
            model, notes = made.model, notes | made.notes
        content = material.named(model).SerializeToString()
        self._file(name).write_bytes(content)
        self._made_from[name] = material
        self._runtimes.pop(name, None)
        self._runtime(name)  # it can be read back, and has kernels for all operators
        return {"bytes": len(content), "notes": notes}

    def _after(self, state: ShrinkSteps) -> tuple[PackageMaterial, dict[str, Any]]:
        """What comes after these steps in a candidate starts from their file, which is made once, for other processes too."""
        if not state:
            return self._material, {}
        if state not in self._bases:
            *before, step = state
            folder = self._folder / "-".join(f"{one.change}-{one.value.replace('/', '-')}" for one in state)
            model, facts = folder / "model.onnx", folder / "notes.json"
            if not facts.exists():
                made, notes = self._base_of(tuple(before), step)
                folder.mkdir(exist_ok=True)
                model.write_bytes(made.SerializeToString())
                facts.write_text(json.dumps(notes))
            self._bases[state] = self._material_in(model, folder), json.loads(facts.read_text())
        return self._bases[state]

    def _base_of(self, before: ShrinkSteps, step: ShrinkStep) -> tuple[onnx.ModelProto, dict[str, Any]]:
        if step.change in TRAINED:
            trained = TRAINED[step.change].make(self._lessons_of_run, step.value)
            return self._lessons_of_run.onnx(trained.model), trained.notes
        material, notes = self._after(before)
        made = CHANGES[step.change].make(material, step.value, step.floats)
        return material.named(made.model), notes | made.notes

    def _error(self, name: str) -> dict[str, Any]:
        """Of what was changed last, beside the model that it was made from."""
        return {"error": self._made_from[name].error_of(library("onnx").load(self._file(name)))}

    def _time(self, first: str, second: str, batch: int, turns: int, most_s: float) -> dict[str, Any]:
        arms = in_turns(self._runtime(first), self._runtime(second), self._inputs(TUNING), batch, turns, most_s)
        return {"first": arms[0].to_dict(), "second": arms[1].to_dict()}

    def _judge(self, name: str, which: str, batch: int, most: int | None = None) -> dict[str, Any]:
        """Costs are written to a file: there may be many rows."""
        rows = {column: one[:most] for column, one in self._rows[which].items()}
        costs = costs_of(self._asked["objective"], self._answering(name), rows, batch)
        file = self._folder / f"costs-{which}-{name}.npz"
        np.savez(file, **dict(costs))  # type: ignore[arg-type]
        return {"file": str(file), "rows": len(rows["y"])}

    def _sizes(self, name: str, judged: int, sizes: Sequence[int]) -> dict[str, Any]:
        """How far the outputs are from the source's in batches of each size, and in batches of `judged` on the same rows."""
        given = self._inputs(TUNING)
        most = max(_SIZE_ROWS, *sizes)
        rows = {column: one[:most] for column, one in given.items()}
        wanted, usual = (in_batches(self._runtime(one).run, rows, judged) for one in (SOURCE, name))
        found = {}
        for size in sizes:
            few = max(_SIZE_ROWS, size)
            made = in_batches(self._runtime(name).run, {column: one[:few] for column, one in rows.items()}, size)
            found[str(size)] = {"error": mean_error(made, wanted, few), "judged": mean_error(usual, wanted, few)}
        return {"sizes": found}

    def _answering(self, name: str) -> Run:
        if self._asked["objective"] != "next_token":
            return self._runtime(name).run
        # losses need more than the outputs, so they come from a copy of the file that gives more
        self._material  # noqa: B018  writes the base
        model = with_log_probabilities(library("onnx").load(self._file(BASE if name == SOURCE else name)))
        path = self._folder / f"{name}-losses.onnx"
        path.write_bytes(model.SerializeToString())
        return OnnxRuntime(path, _CPU).run

    def _outputs(self, name: str) -> dict[str, Any]:
        """On the samples, and how far batches of other sizes and the source's outputs are from them."""
        samples, run = self._package.samples, self._runtime(name).run
        made = {key: one.clone() for key, one in run(dict(samples.rows)).items()}
        far = 0.0
        for size in (1, 7, 64):
            for start in range(0, min(len(samples), 3 * size), size):
                some = run({key: column[start : start + size] for key, column in samples.rows.items()})
                far = max(far, _far(some, {key: one[start : start + size] for key, one in made.items()}))
        file = self._folder / f"outputs-{name}.safetensors"
        write_tensors(file, {key: one.contiguous() for key, one in made.items()})
        return {"file": str(file), "between_batches": far, "from_source": _far(made, samples.outputs)}

    def _profile(self, name: str, batch: int) -> dict[str, Any]:
        rows = self._inputs(TUNING)
        places = torch.arange(batch) % len(next(iter(rows.values())))
        given = self._material.given(rows, places)
        return profiled(self._file(BASE if name == SOURCE else name), given, self._folder)


def _far(made: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> float:
    """The largest difference of numbers with fractions, relative to values above 1, as the comparison of runtimes has it."""
    worst = 0.0
    for name, one in wanted.items():
        if one.is_floating_point():
            error = (made[name].double() - one.double()).abs() / one.double().abs().clamp(min=1.0)
            if not error.isfinite().all():
                raise ModelError(f"{name} is not finite")
            worst = max(worst, float(error.max()))
    return worst
