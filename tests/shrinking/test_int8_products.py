"""int8 of a package's program: its arithmetic, which torch has on a CPU too, batches of any size, and the joules of a row."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from int8_by_hand import linear
from test_shrink_fp8 import Layers, Taking
from torch import Tensor

from flatout.machine.energy import NoEnergy
from flatout.packaging.capture import capture
from flatout.packaging.program import Program
from flatout.packaging.runtimes.runtime import Parts, Runtime
from flatout.shrinking.changes.int8_products import Int8Products
from flatout.shrinking.training.graph import shapes_of
from flatout.shrinking.workshop.turns import joules_of_a_row

CPU = torch.device("cpu")


def changed(module: Layers, x: Tensor, precision: str = "fp32") -> Any:
    captured = capture(Taking(module.eval()), {"x": x})
    made = Int8Products().make(
        captured.program, captured.weights, precision, shapes_of(captured.program, captured.weights, {"x": x}), ()
    )
    assert made.notes["layers"] == 2
    return Program.from_json(json.loads(json.dumps(made.program.to_json()))).module(made.weights, CPU)


@pytest.mark.parametrize("shape", [(5, 64), (5, 7, 64), (2, 3, 4, 64)])
@pytest.mark.parametrize("bias", [True, False])
def test_the_arithmetic_is_that_of_rounded_inputs_and_weights(shape: tuple[int, ...], bias: bool) -> None:
    torch.manual_seed(0)
    module, x = Layers(bias), torch.randn(shape)
    made = changed(module, x)
    for rows in (x, x[:1], torch.randn(17, *shape[1:])):  # a batch of any size, below and above what the kernel takes
        (found,) = made(rows)
        with torch.no_grad():
            first, _, second, last = module.model
            hidden = linear(rows, first.weight, first.bias).float().relu()
            wanted = last(linear(hidden, second.weight, second.bias).float())
            whole = module(rows)["prediction"]
        torch.testing.assert_close(found, wanted, atol=5e-3, rtol=5e-3)
        assert found.dtype == torch.float32 and 0 < (found - whole).abs().mean() < 0.05 * whole.abs().mean()


def test_a_row_of_zeros_and_rows_of_very_different_sizes_do_not_share_a_scale() -> None:
    torch.manual_seed(0)
    module, x = Layers(False), torch.randn(4, 64) * torch.tensor([1e-4, 1.0, 1e3, 0.0])[:, None]
    (found,) = changed(module, x)(x)
    last = module.model[-1].bias
    with torch.no_grad():
        small, whole = (one[0] - last for one in (found, module(x)["prediction"]))
    assert (small - whole).abs().max() < 0.1 * whole.abs().max() and torch.equal(found[3], last)


class Fifty:
    """Fifty watts while a runtime computes, counted in whole joules."""

    name, why_unavailable, resolution_s = "fifty watts", "", 0.02

    def __init__(self) -> None:
        self.busy_s = 0.0

    def read_j(self) -> float:
        return 50.0 * self.busy_s // 1

    def error(self, seconds: float) -> float:
        return self.resolution_s / seconds

    def close(self) -> None:
        pass


class Busy(Runtime):
    """Computes for so long in each call, by its own account."""

    name = "busy"

    @classmethod
    def why_not(cls, parts: Parts) -> str | None:
        return None

    @classmethod
    def load(cls, parts: Parts) -> Busy:
        raise NotImplementedError

    def __init__(self, seconds: float, meter: Fifty) -> None:
        self.seconds, self.meter = seconds, meter

    def run(self, rows: Mapping[str, Tensor]) -> dict[str, Tensor]:
        self.meter.busy_s += self.seconds
        return dict(rows)


def test_joules_of_a_row_are_those_of_its_own_calls() -> None:
    rows, meter = {"x": torch.zeros(8, 2)}, Fifty()
    slow, fast = joules_of_a_row([Busy(0.4, meter), Busy(0.1, meter)], rows, 4, meter)
    assert slow == pytest.approx(50.0 * 0.4 / 4, rel=0.05) and fast == pytest.approx(50.0 * 0.1 / 4, rel=0.05)


def test_without_a_meter_nothing_is_run_and_nothing_is_said() -> None:
    assert joules_of_a_row([Busy(1e9, Fifty())], {"x": torch.zeros(1, 2)}, 1, NoEnergy("no counter")) == [None]
