"""Candidates that are programs on a device, such as fp8 on a GPU. They are run as the source is: eager, or compiled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from flatout.base.errors import ModelError
from flatout.base.files import json_bytes, parse_json
from flatout.packaging.parity import compare, mean_error
from flatout.packaging.program import Program
from flatout.packaging.runtimes.choice import runtime_named
from flatout.packaging.runtimes.compiled import CompiledRuntime
from flatout.packaging.runtimes.eager import EagerRuntime
from flatout.packaging.runtimes.runtime import Parts, Runtime
from flatout.shrinking.changes.all import OF_PROGRAMS, TRAINED
from flatout.shrinking.changes.program_change import ChangedProgram
from flatout.shrinking.rows import TUNING
from flatout.shrinking.training.graph import Shape, shapes_of
from flatout.shrinking.workshop.answers import LOG_PROBABILITIES, Run, in_batches
from flatout.shrinking.workshop.profile import profiled_on_device
from flatout.shrinking.workshop.questions import SOURCE, AnsweringBench
from flatout.shrinking.workshop.turns import in_turns
from flatout.store.tensors import read_tensors, write_tensors

_FEW, _ERROR_ROWS = 2, 512
_ONE = 1  # the size of a batch that is compiled first


class ProgramBench(AnsweringBench):
    """What was loaded is kept: compiling a large model anew takes minutes, one by one for each size of a batch."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._sources: dict[str, Runtime] = {}
        self._of_tokens: dict[str, Run] = {}

    @property
    def _device(self) -> torch.device:
        return torch.device(self._asked["device"])

    @cached_property
    def _program(self) -> Program:
        program = self._package.program
        if not isinstance(program, Program):
            raise ModelError("the package has no graph of the model")
        return program

    @cached_property
    def _shapes(self) -> list[Shape]:
        return shapes_of(self._program, self._package.weights, self._package.samples.first(_FEW).rows)

    def _parts(self, name: str) -> Parts:
        parts = self._package.parts(self._device)
        if name == SOURCE:
            return parts
        made = self._made(name)
        return replace(parts, program=made.program, weights=made.weights, onnx=None)

    def _made(self, name: str) -> ChangedProgram:
        program = Program.from_json(parse_json((self._folder / f"{name}.json").read_bytes()))
        return ChangedProgram(program, read_tensors(self._folder / f"{name}.safetensors"))

    def _loaded(self, name: str) -> Runtime:
        if name == SOURCE and self._chosen in self._sources:
            return self._sources[self._chosen]
        return runtime_named(self._chosen).load(self._parts(name))

    def _answering(self, name: str) -> Run:
        if self._asked["objective"] != "next_token":
            return self._runtime(name).run
        if name not in self._of_tokens:
            parts = self._parts(name)
            assert isinstance(parts.program, Program)
            with_more = replace(parts, program=with_log_probabilities(parts.program))
            self._of_tokens[name] = runtime_named(self._chosen).load(with_more).run
        return self._of_tokens[name]

    # ---- questions ----

    def _start(self, batch: int) -> dict[str, Any]:
        """Which runtime serves the source, by their times. And the layers of each change, or why it does not apply."""
        parts, seconds, why = self._parts(SOURCE), dict[str, float](), dict[str, str]()
        kinds: tuple[type[Runtime], ...] = (EagerRuntime, CompiledRuntime)
        for kind in kinds[: 1 if self._device.type == "cpu" else 2]:
            reason = kind.why_not(parts)
            if reason is None:
                runtime = kind.load(parts)
                reason = compare(runtime.run, self._package.samples, parts.allowed).problem
            if reason is None:
                arm, _ = in_turns(runtime, runtime, self._inputs(TUNING), batch, 8, 0.5)
                seconds[kind.name] = float(np.median(arm.blocks_s))
                self._sources[kind.name] = runtime
            else:
                why[kind.name] = reason
        weights = self._package.weights
        changes = {
            name: {
                value: {
                    "why_not": one.why_not(self._program, weights, self._device), "layers": one.layers(self._program, weights),
                }
                for value in one.values
            }
            for name, one in OF_PROGRAMS.items()
        }  # fmt: skip
        return {"seconds": seconds, "why": why, "changes": changes, "bytes": _bytes(self._program, weights)}

    def _make(self, steps: Sequence[Mapping[str, Any]], name: str) -> dict[str, Any]:
        (step,) = steps
        change, precision = OF_PROGRAMS[step["change"]], self._package.card["precision"]
        made = change.make(self._program, self._package.weights, precision, self._shapes, step["floats"])
        (self._folder / f"{name}.json").write_bytes(json_bytes(made.program.to_json()))
        write_tensors(self._folder / f"{name}.safetensors", made.weights)
        self._runtimes.pop(name, None)
        self._of_tokens.pop(name, None)
        self._runtime(name).run(self._package.samples.first(_ONE).rows)  # it can be read back, and there are kernels
        return {"bytes": _bytes(made.program, made.weights), "notes": made.notes}

    def _lessons(self) -> dict[str, Any]:
        why = "smaller models are trained for a CPU only so far"
        return {"changes": {name: {value: {"why_not": why} for value in one.values} for name, one in TRAINED.items()}}

    def _error(self, name: str) -> dict[str, Any]:
        rows = {column: one[:_ERROR_ROWS] for column, one in self._inputs(TUNING).items()}
        made, wanted = (in_batches(self._runtime(one).run, rows, 64) for one in (name, SOURCE))
        return {"error": mean_error(made, wanted)}

    def _profile(self, name: str, batch: int) -> dict[str, Any]:
        rows = self._inputs(TUNING)
        places = torch.arange(batch) % len(next(iter(rows.values())))
        given = {column: one.index_select(0, places) for column, one in rows.items()}
        return profiled_on_device(lambda: self._runtime(name).run(given), self._device)


def with_log_probabilities(program: Program) -> Program:
    """A copy that also gives those of every token: the outputs of a package have only that of the most likely one."""
    names = ("aten.log_softmax.int", "aten._log_softmax.default")
    numbers = [number for number, node in enumerate(program.nodes) if node.operator in names]
    if not numbers:
        raise ModelError("the model's graph has no log_softmax from which losses can be computed")
    port = replace(program.outputs[0], name=LOG_PROBABILITIES, dtype="float32")
    return replace(program, outputs=(*program.outputs, port), returns=(*program.returns, numbers[-1]))


def _bytes(program: Program, weights: Mapping[str, Tensor]) -> int:
    return sum(weights[name].nbytes for name in set(program.weight_names))
