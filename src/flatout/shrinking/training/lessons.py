"""The run behind a package, and short trainings of smaller models on its data, by the same engine."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from flatout.data.source import Batch
from flatout.engine.settings import is_setting
from flatout.models.adapters import merged
from flatout.packaging.answering import Preparation
from flatout.packaging.export import onnx_of_model
from flatout.packaging.own_data import data_of, run_behind
from flatout.packaging.package import Package
from flatout.packaging.program import Program
from flatout.recipe.build import build_job
from flatout.recipe.schema import Recipe
from flatout.runs.in_use import as_trained
from flatout.runs.train import run as train
from flatout.runs.trained import trained_model
from flatout.shrinking.training.blocks import BlockRow, rows_of_blocks, shallower
from flatout.shrinking.training.cuts import Width
from flatout.shrinking.training.importance import importance
from flatout.shrinking.training.sizes import flops_of, scale_dropout, weights_of
from flatout.shrinking.training.surgery import cut
from flatout.shrinking.training.teaching import KNOWN, TaughtLoss
from flatout.shrinking.training.widths import widths_of

if TYPE_CHECKING:
    import onnx

_FEW = 2
_NARROW = 0.2
_PLAIN: dict[str, Any] = {
    "init_from": None, "freeze": (), "unfreeze": {}, "rates": {}, "ema": None, "early_stop": None, "best": None,
    "metrics": None, "class_weights": None, "evaluate": None, "knobs": (), "name": "smaller",
}  # fmt: skip


class Lessons:
    """`rows`: some as the package takes them, with `y`. `folder`: for the runs of the trainings, until they end."""

    def __init__(self, package: Package, rows: Batch, folder: Path, cache: Path | None) -> None:
        self._package, self._rows, self._folder, self._cache = package, rows, folder, cache
        self._run = run_behind(package)
        self._job = build_job(self._run.recipe, cache, data=data_of(self._run, cache), trained=True)
        whole = merged(trained_model(self._run.folder, self._job))
        self.model = as_trained(self._run.plan.settings, whole, torch.device("cpu")).eval()
        self._step_s = self._timed()

    @property
    def recipe(self) -> Recipe:
        return self._run.recipe

    @property
    def samples(self) -> int:
        """That the run was trained with, in all epochs."""
        return int(self._run.result["samples"])

    def predicted_s(self, samples: int, left: float) -> float:
        """Of a training of a model of which so much is left. Narrow layers take more time than their share."""
        asking_s, learning_s = self._step_s
        return samples / self._job.batch * (asking_s + learning_s * min(1.0, left + _NARROW))

    @property
    def why_not_narrower(self) -> str | None:
        if not isinstance(self._package.program, Program):
            return "the package has no graph of the model"
        if any(not width.why_not for width in self.widths):
            return None
        reasons = [f"{width.layer}: {width.why_not}" for width in self.widths]
        return f"no layer can be cut: {'; '.join(reasons[:3]) or 'there is no convolution and no linear layer'}"

    @property
    def why_not_taught(self) -> str | None:
        kind = self._job.objective.name
        return None if kind in KNOWN else f"a teacher's answers to {kind} are not used yet, only those to {', '.join(KNOWN)}"

    @cached_property
    def widths(self) -> list[Width]:
        program = self._package.program
        if not isinstance(program, Program):
            return []
        found = widths_of(program, self.model, self._package.weights, self._package.samples.first(_FEW).rows)
        for width in found:
            width.why_not = width.why_not or self._why_not_run_without_half_of(width)
        return found

    def _why_not_run_without_half_of(self, width: Width) -> str:
        return self._why_not_run(lambda: cut(self.model, [width], {width.layer: torch.arange(max(1, width.size // 2))}), "it")

    @cached_property
    def blocks(self) -> list[BlockRow]:
        return rows_of_blocks(self.model)

    @cached_property
    def why_not_shallower(self) -> str | None:
        if not self.blocks:
            return "no blocks that follow one another are of one class, with weights of the same shapes"
        return self._why_not_run(lambda: shallower(self.model, self.blocks, 0.5), "its blocks") or None

    def _why_not_run(self, make: Callable[[], nn.Module], what: str) -> str:
        """The model's own code may have sizes and counts written out, which its graph does not show."""
        try:
            self.flops(make())
        except Exception as error:  # any code
            return f"the model does not run without half of {what}: {str(error).strip().partition(chr(10))[0]}"
        return ""

    @cached_property
    def worth(self) -> dict[str, torch.Tensor]:
        return importance(self.model, self._job.objective, self._batch(self._rows), self.widths)

    def flops(self, model: nn.Module) -> int:
        """Of a row."""
        batch = self._batch(self._package.samples.first(_FEW).rows)
        return flops_of(lambda: self._job.objective.forward(model.eval(), batch)) // _FEW

    def taught(self, model: nn.Module, samples: int, rate: float) -> tuple[nn.Module, dict[str, Any]]:
        """`model` after that many samples, at `rate` times the run's learning rate, taught by the run's model if it can; and
        facts for the receipt."""
        facts = {"flops": self.flops(model) / self.flops(self.model), "weights": weights_of(model) / weights_of(self.model)}
        began_s = time.monotonic()
        scale_dropout(model, facts["weights"])
        made, steps = self._trained(model, samples, rate)
        return made, {**facts, "steps": steps, "samples": steps * self._job.batch, "trained_s": time.monotonic() - began_s}

    def _trained(self, model: nn.Module, samples: int, rate: float) -> tuple[nn.Module, int]:
        found = self._run.found_lr
        lr = self.recipe.lr if found is None or found.lr is None else found.lr
        taught = self.why_not_taught is None
        steps = max(1, round(samples / self._job.batch))
        pins = {name: value for name, value in self.recipe.settings.items() if is_setting(name)}
        recipe = self.recipe.model_copy(update={
            **_PLAIN, "data": self._job.data, "model": model, "lr": lr * rate, "budget": f"{steps} steps", "settings": pins,
            "objective": TaughtLoss(self._job.objective, self.model) if taught else self._job.objective,
        })  # fmt: skip
        recipe._loaded = None
        threads = torch.get_num_threads()
        try:
            with tempfile.TemporaryDirectory(prefix="training-", dir=self._folder) as runs:
                made = train(recipe, runs=runs, fresh=True, cache=self._cache, planning="off")
                return made.model(bare=True), steps
        finally:
            torch.set_num_threads(threads)

    def onnx(self, model: nn.Module) -> onnx.ModelProto:
        return onnx_of_model(model, self._job.objective, self._job.data.fitted, self._package.samples.rows)

    def _batch(self, rows: Batch) -> Batch:
        batch: Batch = Preparation(self._job.data.fitted).inside(rows)
        return batch

    def _timed(self) -> tuple[float, float]:
        """Of a step on as many rows as a batch of the run: to ask the teacher, if there is one, and to learn."""
        places = torch.arange(self._job.batch) % len(self._rows["y"])
        batch = self._batch({name: column[places] for name, column in self._rows.items()})
        objective, asking, learning = self._job.objective, [0.0], list[float]()
        for _ in range(3):
            began_s = time.perf_counter()
            if self.why_not_taught is None:
                with torch.no_grad():
                    objective.forward(self.model, batch)
                asking.append(time.perf_counter() - began_s)
            loss_sum, weight = objective(self.model, batch)
            torch.autograd.grad(loss_sum / weight, [one for one in self.model.parameters() if one.requires_grad])
            learning.append(time.perf_counter() - began_s - asking[-1])
        return min(asking[-2:]), min(learning[1:])
