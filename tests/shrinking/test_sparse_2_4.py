"""2:4 sparsity of a package's program: what is cut, the shapes of its products, and where there are none. Their arithmetic is
tested on a GPU."""

from __future__ import annotations

import json

import pytest
import torch
from test_shrink_fp8 import Layers, Taking
from torch._subclasses.fake_tensor import FakeTensorMode

from flatout.packaging.capture import capture
from flatout.packaging.program import Program
from flatout.shrinking.changes import sparse_2_4
from flatout.shrinking.changes.sparse_2_4 import Sparse24, two_of_four
from flatout.shrinking.training.graph import shapes_of


def test_the_two_largest_of_each_four_stay() -> None:
    weight = torch.tensor([[1.0, -3.0, 2.0, 0.5, 0.0, 0.1, -0.2, 0.05], [4.0, 4.0, 4.0, 5.0, 0.0, 0.0, 0.0, 0.0]])
    kept = two_of_four(weight)
    assert kept[0].tolist() == pytest.approx([0.0, -3.0, 2.0, 0.0, 0.0, 0.1, -0.2, 0.0])
    assert kept[1, 3] == 5.0 and (kept[1, :4] != 0).sum() == 2 and not kept[1, 4:].any()
    large = torch.randn(64, 128, generator=torch.Generator().manual_seed(0))
    fours = two_of_four(large).unflatten(1, (-1, 4))
    assert ((fours != 0).sum(-1) == 2).all() and fours.square().sum() > 0.8 * large.square().sum()


@pytest.mark.parametrize("shape", [(5, 64), (5, 7, 64), (2, 3, 4, 64)])
@pytest.mark.parametrize("bias", [True, False])
def test_a_batch_of_any_size_fits_the_kernel(shape: tuple[int, ...], bias: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel's own rules for shapes are checked, which torch has without a GPU; its result is not computed."""
    monkeypatch.setattr(sparse_2_4, "compressed", lambda weight: weight[:, : 9 * weight.shape[1] // 16].contiguous())
    module, x = Layers(bias), torch.randn(shape)
    captured = capture(Taking(module.eval()), {"x": x})
    shapes = shapes_of(captured.program, captured.weights, {"x": x})
    made = Sparse24().make(captured.program, captured.weights, "fp32", shapes, ())
    assert made.notes["layers"] == 2
    program = Program.from_json(json.loads(json.dumps(made.program.to_json())))
    assert sum(node.operator == "aten._cslt_sparse_mm.default" for node in program.nodes) == 2
    for rows in (1, 5, 8, 64):
        with FakeTensorMode(allow_non_fake_inputs=True):
            (found,) = program.module(made.weights, torch.device("cpu"))(torch.empty(rows, *shape[1:]))
        assert found.shape == (rows, *shape[1:-1], 10) and found.dtype == torch.float32


def test_a_cpu_has_no_kernels_for_it() -> None:
    captured = capture(Taking(Layers(False)), {"x": torch.randn(5, 64)})
    why = Sparse24().why_not(captured.program, captured.weights, torch.device("cpu"))
    assert why == "there are no kernels for 2:4 sparsity on a CPU"
