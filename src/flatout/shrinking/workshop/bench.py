"""Candidates that are files of ONNX in the workshop's folder, run by onnxruntime on the CPU."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from flatout.packaging.onnx_libraries import library
from flatout.packaging.parity import compare
from flatout.packaging.runtimes.choice import runtime_named
from flatout.packaging.runtimes.eager import EagerRuntime
from flatout.packaging.runtimes.onnxruntime_runtime import OnnxRuntime
from flatout.packaging.runtimes.runtime import Runtime
from flatout.shrinking.changes.all import CHANGES, TRAINED, comes_first
from flatout.shrinking.rows import CALIBRATING, TUNING
from flatout.shrinking.step import ShrinkStep, ShrinkSteps
from flatout.shrinking.training.lessons import Lessons
from flatout.shrinking.workshop.answers import Run, with_log_probabilities
from flatout.shrinking.workshop.material import PackageMaterial
from flatout.shrinking.workshop.profile import profiled
from flatout.shrinking.workshop.questions import CPU, SOURCE, AnsweringBench
from flatout.shrinking.workshop.turns import in_turns

if TYPE_CHECKING:
    import onnx

BASE = "base"


class CandidateBench(AnsweringBench):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._bases: dict[ShrinkSteps, tuple[PackageMaterial, dict[str, Any]]] = {}
        self._made_from: dict[str, PackageMaterial] = {}

    # ---- what is there ----

    @cached_property
    def _material(self) -> PackageMaterial:
        return self._material_in(self._package.path / "model.onnx", self._folder)

    def _material_in(self, model: Path, folder: Path) -> PackageMaterial:
        return PackageMaterial(model, folder, self._inputs(CALIBRATING), self._inputs(TUNING))

    @cached_property
    def _lessons_of_run(self) -> Lessons:
        cache = self._asked["cache"]
        return Lessons(self._package, self._rows[CALIBRATING], self._folder, None if cache is None else Path(cache))

    def _loaded(self, name: str) -> Runtime:
        if name == SOURCE:
            made = runtime_named(self._chosen).load(self._package.parts(CPU))
        else:
            made = OnnxRuntime(self._file(name), CPU)
        made.tune(self._inputs(TUNING))
        return made

    def _file(self, name: str) -> Path:
        return self._folder / f"{name}.onnx"

    # ---- questions ----

    def _start(self, batch: int) -> dict[str, Any]:
        """Which runtime serves the source, by their times. And the layers of each change, or why it does not apply."""
        package = self._package
        parts = package.parts(CPU)
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
                takes_s = 0.0 if why_not else lessons.predicted_s(one.samples(lessons, value), one.left(value))
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

    def _answering(self, name: str) -> Run:
        if self._asked["objective"] != "next_token":
            return self._runtime(name).run
        # losses need more than the outputs, so they come from a copy of the file that gives more
        self._material  # noqa: B018  writes the base
        model = with_log_probabilities(library("onnx").load(self._file(BASE if name == SOURCE else name)))
        path = self._folder / f"{name}-losses.onnx"
        path.write_bytes(model.SerializeToString())
        return OnnxRuntime(path, CPU).run

    def _profile(self, name: str, batch: int) -> dict[str, Any]:
        rows = self._inputs(TUNING)
        places = torch.arange(batch) % len(next(iter(rows.values())))
        given = self._material.given(rows, places)
        return profiled(self._file(BASE if name == SOURCE else name), given, self._folder)
