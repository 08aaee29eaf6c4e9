"""What a step computes is what torch's own counter says, from shapes alone."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile
from torch.utils.flop_counter import FlopCounterMode

from flatout.doctor.flops import flops_of


def both(run: Callable[[], Tensor]) -> tuple[float, float]:
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True, acc_events=True) as profiled:
        run().sum().backward()
    ours = sum(flops_of(event) for event in profiled.profiler.kineto_results.events())  # type: ignore[union-attr]
    with FlopCounterMode(display=False) as counter:
        run().sum().backward()
    return ours, float(counter.get_total_flops())


MODELS: dict[str, tuple[nn.Module, tuple[int, ...]]] = {
    "products": (nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3, bias=False)), (5, 8)),
    "padding by name": (nn.Conv2d(3, 8, 3, padding="same"), (4, 3, 12, 12)),
    "strides and holes": (
        nn.Sequential(nn.Conv2d(4, 8, 3, stride=2), nn.Conv2d(8, 6, 3, dilation=2, padding=1)),
        (4, 4, 21, 17),
    ),
    "one dimension": (nn.Conv1d(3, 8, 5, padding=2), (2, 3, 20)),
    "transposed": (nn.Sequential(nn.Conv2d(3, 4, 1), nn.ConvTranspose2d(4, 6, 3, stride=2)), (2, 3, 6, 6)),
}


@pytest.mark.parametrize("name", MODELS)
def test_it_counts_as_torch_does(name: str) -> None:
    model, shape = MODELS[name]
    x = torch.randn(shape)
    ours, theirs = both(lambda: model(x))
    assert ours == theirs > 0


def test_groups_compute_their_part_forward_and_back() -> None:
    """torch counts their weights' gradients as if there were none."""
    x, layer = torch.randn(4, 4, 21, 17, requires_grad=True), nn.Conv2d(4, 8, 3, stride=2, groups=2)
    assert both(lambda: layer(x))[0] == 3 * (2 * 4 * 10 * 8 * 8 * 2 * 9)


def test_many_products_at_once() -> None:
    a, b = torch.randn(3, 4, 5, requires_grad=True), torch.randn(3, 5, 6, requires_grad=True)
    ours, theirs = both(lambda: torch.baddbmm(torch.zeros(3, 4, 6), a, b) + torch.bmm(a, b))
    assert ours == theirs == 2 * 3 * (2 * 3 * 4 * 5 * 6)


def test_attention_counts_and_half_of_it_where_it_looks_back_only() -> None:
    q, k, v = (torch.randn(2, 4, rows, 8, requires_grad=True) for rows in (16, 24, 24))
    products = 2 * 2 * 4 * 16 * 24 * (8 + 8)
    ours, _ = both(lambda: F.scaled_dot_product_attention(q, k, v))
    assert ours == 3 * products
    q, k, v = (torch.randn(2, 4, 16, 8, requires_grad=True) for _ in range(3))
    ours, _ = both(lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True))
    assert ours == 3 * (2 * 2 * 4 * 16 * 16 * (8 + 8)) / 2


@pytest.mark.parametrize("layers", [1, 2])
def test_recurrent_layers_count_whoever_computes_them(layers: int) -> None:
    """oneDNN's are one operator each; elsewhere they are products, a step at a time."""
    x, model = torch.randn(7, 3, 16, requires_grad=True), nn.LSTM(16, 16, layers)
    ours, _ = both(lambda: model(x)[0])
    assert ours == pytest.approx(3 * layers * (2 * 7 * 3 * (64 * 16 + 64 * 16)), rel=0.1)
