"""Conformance suite for an objective: subclass it in a test to check that batches may be split and shared.

class TestMine(ObjectiveConformance):
    objective = Mine()

    def model(self): ...

    def batch(self): ...
"""

from __future__ import annotations

import math
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from flatout.base.errors import ModelError
from flatout.objectives.inputs import Batch
from flatout.objectives.joining import adder
from flatout.objectives.objective import Loss, Meter, Objective, is_shared

_CUTS = (0, 1, 3)  # split points of a batch: parts of 1, 2 and the rest


class ObjectiveConformance:
    """The model's samples must not interact: no batch statistics, no dropout."""

    objective: ClassVar[Objective]
    known: ClassVar[dict[str, Any]] = {}  # facts about the data for `outputs_for`: classes, target_shape, vocabulary

    def model(self) -> nn.Module:
        raise NotImplementedError("override model(): return a small model for batch()")

    def batch(self) -> Batch:
        """At least 5 rows, the same each time."""
        raise NotImplementedError("override batch(): return columns with targets")

    def test_it_has_all_that_an_objective_has(self) -> None:
        assert self.objective.name and self.objective.better in ("max", "min")
        assert self.objective.metric in self._measured(self.batch()), "`metric` is not among the metrics that it measures"

    def test_the_loss_is_a_sum_and_a_weight(self) -> None:
        loss_sum, weight = self._loss(self.batch())
        assert loss_sum.dim() == 0 and loss_sum.dtype in (torch.float32, torch.float64) and bool(loss_sum.isfinite())
        assert float(weight) > 0 and (not isinstance(weight, Tensor) or weight.dim() == 0)

    def test_parts_of_a_batch_add_up_to_the_whole(self) -> None:
        whole = self._loss(self.batch())
        parts = [self._loss(part) for part in _parts(self.batch())]
        assert _close(sum(float(weight) for _, weight in parts), float(whole[1])), "weights"
        assert _close(sum(float(loss) for loss, _ in parts), float(whole[0])), (
            "the losses of the parts do not add up: does it return a mean instead of a sum?"
        )

    def test_the_gradients_of_parts_add_up_to_those_of_the_whole(self) -> None:
        whole, in_parts = self._model(), self._model()
        self.objective(whole, self.batch())[0].backward()  # type: ignore[no-untyped-call]
        for part in _parts(self.batch()):
            self.objective(in_parts, part)[0].backward()  # type: ignore[no-untyped-call]
        for (name, expected), found in zip(whole.named_parameters(), in_parts.parameters(), strict=True):
            if expected.grad is not None:
                assert found.grad is not None and torch.allclose(expected.grad, found.grad, rtol=1e-4, atol=1e-5), name

    def test_half_precision_is_summed_in_full(self) -> None:
        if not self.objective.of_output:
            return
        with torch.no_grad():
            output = self._output(self.batch())
        if isinstance(output, Tensor):
            assert self.objective.loss(output.bfloat16(), self.batch())[0].dtype == torch.float32

    def test_nobody_waits_for_the_device(self) -> None:
        model, batch = self._model(), self.batch()
        meter = self.objective.meter(torch.device("cpu"))
        with torch.no_grad(), torch.autograd.profiler.profile() as calls:
            output = self.objective.forward(model, batch)
            meter.update(output, *self.objective.loss(output, batch), batch)
        called = {event.name for event in calls.function_events}
        assert "aten::_local_scalar_dense" not in called, "it reads a value on the host: .item(), float(...) or an if"

    def test_the_model_is_checked(self) -> None:
        with torch.no_grad():
            self.objective.check(self._output(self.batch()), self.batch(), self._outputs())
        try:
            self.objective.check("no output of a model", self.batch())
        except ModelError:
            return
        raise AssertionError("check accepts a string as model output")

    def test_it_says_how_wide_the_last_layer_is(self) -> None:
        assert not self.known or (isinstance(self._outputs(), int) and (self._outputs() or 0) >= 1)

    def test_metrics_of_parts_are_those_of_the_whole(self) -> None:
        whole, in_parts = self._measured(self.batch()), self._measured(*_parts(self.batch()))
        assert whole.keys() == in_parts.keys()
        assert all(_close(whole[name], in_parts[name]) for name in whole), (
            f"{whole} for the whole batch, {in_parts} for its parts"
        )
        loss_sum, weight = self._loss(self.batch())
        assert "loss" not in whole or _close(whole["loss"], float(loss_sum) / float(weight))

    def test_metrics_of_several_processes_are_put_together(self) -> None:
        meters = [self._updated(part) for part in _parts(self.batch())]
        first = meters[0]
        if is_shared(first):
            first.put_together([meter.collected() for meter in meters if is_shared(meter)])
            whole, found = self._measured(self.batch()), first.result()
            assert all(_close(whole[name], found[name]) for name in whole), (
                f"{whole} for the whole batch, {found} when combined"
            )

    def test_predictions_are_columns_row_by_row(self) -> None:
        model, batch = self._model(), self.batch()
        rows = len(next(iter(batch.values())))
        with torch.no_grad():
            whole, first = self.objective.predict(model, batch), self.objective.predict(model, _cut(batch, 0, 2))
        assert whole and all(isinstance(name, str) and len(column) == rows for name, column in whole.items())
        for name, column in first.items():
            assert torch.allclose(column.double(), whole[name][:2].double(), atol=1e-5), f"{name} depends on other rows"

    def _model(self) -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(5)
            return self.model()

    def _output(self, batch: Batch) -> Any:
        return self.objective.forward(self._model(), batch)

    def _outputs(self) -> int | None:
        return self.objective.outputs_for(**self.known) if self.known else None

    def _loss(self, batch: Batch) -> Loss:
        with torch.no_grad():
            return self.objective(self._model(), batch)

    def _updated(self, *batches: Batch) -> Meter:
        meter, model = self.objective.meter(torch.device("cpu")), self._model()
        with torch.no_grad():
            for batch in batches:
                adder(self.objective, meter)(self.objective.forward(model, batch), batch)
        return meter

    def _measured(self, *batches: Batch) -> dict[str, float]:
        return self._updated(*batches).result()


def _cut(batch: Batch, begin: int, end: int | None) -> Batch:
    return {name: column[begin:end] for name, column in batch.items()}


def _parts(batch: Batch) -> list[Batch]:
    return [_cut(batch, begin, end) for begin, end in zip(_CUTS, (*_CUTS[1:], None), strict=True)]


def _close(first: float, second: float) -> bool:
    if math.isnan(first) or math.isnan(second):
        return math.isnan(first) and math.isnan(second)
    return first == second or abs(first - second) <= 1e-4 * max(1.0, abs(first), abs(second))
