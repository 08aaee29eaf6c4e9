"""Dropout from sixteen bits an element: the same coin, thrown by the same generator, and the same gradients."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from flatout.boost.hooks import Hooks
from flatout.boost.remedies.quick_dropout import QuickDropout

PLAIN = F.dropout


@pytest.fixture(autouse=True)
def quick() -> Iterator[None]:
    hooks = Hooks()
    QuickDropout().apply("on", hooks)
    yield
    hooks.patches.restore()
    assert F.dropout is PLAIN


@pytest.mark.parametrize("p", [0.1, 0.25, 0.5, 0.9])
def test_as_many_are_dropped_as_asked_for_and_the_rest_makes_up_for_them(p: float) -> None:
    torch.manual_seed(0)
    n = 2_000_000
    dropped = nn.Dropout(p)(torch.ones(n))
    share = float((dropped == 0).double().mean())
    assert share == pytest.approx(p, abs=4 * (p * (1 - p) / n) ** 0.5 + 2**-17)
    assert dropped.max().item() == pytest.approx(1 / (1 - p), rel=1e-4)
    assert float(dropped.double().mean()) == pytest.approx(1.0, abs=4 * (p / (1 - p) / n) ** 0.5 + 1e-4)


def test_neighbours_fall_independently() -> None:
    """Four of them come out of one number."""
    torch.manual_seed(0)
    kept = (F.dropout(torch.ones(1_000_000), 0.3) != 0).double().view(-1, 4)
    correlation = torch.corrcoef(kept.T) - torch.eye(4, dtype=torch.float64)
    assert float(correlation.abs().max()) < 4 / len(kept) ** 0.5
    assert torch.allclose(kept.mean(0), torch.tensor(0.7, dtype=torch.float64), atol=4 * (0.21 / len(kept)) ** 0.5)


def test_the_seed_decides() -> None:
    x = torch.randn(100, 100)
    one, other = (_seeded(seed, x) for seed in (1, 2))
    assert torch.equal(one, _seeded(1, x)) and not torch.equal(one, other)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("inplace", [False, True])
def test_gradients_go_where_values_went(layout: torch.memory_format, inplace: bool) -> None:
    x = torch.randn(8, 16, 12, 12).to(memory_format=layout).requires_grad_()
    y = F.dropout(x * 1, 0.25, True, inplace)
    assert y.stride() == x.stride()
    y.sum().backward()
    expected = torch.where(y == 0, 0.0, 4 / 3)
    assert x.grad is not None and torch.allclose(x.grad, expected) and torch.allclose(y, x * expected)


def test_what_is_not_its_business_is_left_to_torch() -> None:
    x = torch.randn(100, 100)
    for given in ((x, 0.5, False), (x, 0.0), (x, 1.0), (x[:2], 0.5)):
        torch.manual_seed(3)
        ours = F.dropout(*given)
        torch.manual_seed(3)
        assert torch.equal(ours, PLAIN(*given))
    with pytest.raises(ValueError, match="between 0 and 1"):
        F.dropout(x, 1.5)


def _seeded(seed: int, x: Tensor) -> Tensor:
    torch.manual_seed(seed)
    return F.dropout(x, 0.5)
