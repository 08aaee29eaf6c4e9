"""Cross entropy of many classes is torch's own in all but time, and what it does not know is left to torch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from flatout.boost.hooks import Hooks
from flatout.boost.remedies.fused_loss import FusedLoss

PLAIN = F.cross_entropy


@pytest.fixture(autouse=True)
def fused() -> Iterator[None]:
    hooks = Hooks()
    FusedLoss().apply("on", hooks)
    yield
    hooks.patches.restore()
    assert F.cross_entropy is PLAIN


def drawn(rows: int = 260, classes: int = 4200) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(0)
    logits = 5 * torch.randn(rows, classes, generator=draw)
    target = torch.randint(0, classes, (rows,), generator=draw)
    target[3:40] = -100
    return logits.requires_grad_(), target


def with_gradient(loss: Any, logits: Tensor, target: Tensor, times: float = 1.0, **how: Any) -> tuple[Tensor, Tensor]:
    logits = logits.detach().requires_grad_()
    found = loss(logits, target, **how)
    (found * times).backward()
    assert logits.grad is not None
    return found.detach(), logits.grad


@pytest.mark.parametrize("times", [1.0, 0.25])
@pytest.mark.parametrize("how", [{}, {"reduction": "sum"}, {"ignore_index": 7}], ids=str)
def test_losses_and_gradients_are_those_of_torch(how: dict[str, Any], times: float) -> None:
    logits, target = drawn()
    if "ignore_index" in how:
        target[3:40] = 7
    loss, gradient = with_gradient(F.cross_entropy, logits, target, times, **how)
    wanted, expected = with_gradient(PLAIN, logits, target, times, **how)
    torch.testing.assert_close(loss, wanted)
    torch.testing.assert_close(gradient, expected, atol=1e-6, rtol=1e-4)
    assert F.cross_entropy(logits, target).grad_fn.name() != PLAIN(logits, target).grad_fn.name()  # type: ignore[union-attr]


def test_classes_may_be_before_places() -> None:
    logits, target = drawn()
    cut = logits.detach().view(2, 130, -1)
    for loss in (F.cross_entropy, PLAIN):
        found = loss(cut.transpose(1, 2), target.view(2, 130))
        torch.testing.assert_close(found, PLAIN(logits, target))


def test_in_half_precision_it_is_computed_in_float32() -> None:
    logits, target = drawn()
    half = logits.detach().bfloat16()
    with torch.autocast("cpu", torch.bfloat16):
        loss, gradient = with_gradient(F.cross_entropy, half, target)
        wanted, expected = with_gradient(PLAIN, half, target)
    assert loss.dtype == wanted.dtype == torch.float32 and gradient.dtype == torch.bfloat16
    torch.testing.assert_close(loss, wanted)
    torch.testing.assert_close(gradient, expected)


def test_extremes_are_as_torchs() -> None:
    logits, target = drawn()
    steep = logits.detach() * 100
    steep[:, 5] = -float("inf")
    loss, gradient = with_gradient(F.cross_entropy, steep, target.clamp(min=6))
    wanted, expected = with_gradient(PLAIN, steep, target.clamp(min=6))
    torch.testing.assert_close(loss, wanted)
    torch.testing.assert_close(gradient, expected)
    assert F.cross_entropy(logits, torch.full_like(target, -100)).isnan()
    with pytest.raises((IndexError, RuntimeError), match=r"bounds|range"):
        F.cross_entropy(logits, torch.full_like(target, 4200))


@pytest.mark.parametrize(
    "how",
    [{"label_smoothing": 0.1}, {"reduction": "none"}, {"weight": torch.rand(4200)}, {"reduction": "mean", "reduce": True}],
    ids=lambda how: str(sorted(how)),
)
@pytest.mark.filterwarnings("ignore:size_average and reduce:UserWarning")
def test_what_is_not_its_business_is_left_to_torch(how: dict[str, Any]) -> None:
    logits, target = drawn()
    ours, torchs = F.cross_entropy(logits, target, **how), PLAIN(logits, target, **how)
    assert torch.equal(ours, torchs) and type(ours.grad_fn) is type(torchs.grad_fn)
