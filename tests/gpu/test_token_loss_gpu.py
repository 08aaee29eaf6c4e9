"""The kernels of the token loss against torch's own formula in float64."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from flatout.objectives.token_loss import fused_loss, token_loss

IGNORED = -100


def _case(dtype: torch.dtype, columns: int, rows: int = 37) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator("cuda").manual_seed(columns)
    logits = torch.randn(rows, columns, device="cuda", generator=generator).mul_(6).to(dtype)
    target = torch.randint(0, columns, (rows,), device="cuda", generator=generator)
    target[::5] = IGNORED
    return logits.requires_grad_(), target


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize(("dtype", "close"), [(torch.float32, 1e-5), (torch.bfloat16, 1e-2), (torch.float16, 2e-3)])
@pytest.mark.parametrize("columns", [65, 4096, 5000, 50304])
def test_loss_and_gradient_are_those_of_torch(dtype: torch.dtype, close: float, columns: int, compiled: bool) -> None:
    logits, target = _case(dtype, columns)
    ours = torch.compile(fused_loss, dynamic=False) if compiled else fused_loss
    loss = ours(logits, target, IGNORED)
    (loss / 7).backward()
    exact = logits.detach().double().requires_grad_()
    expected = F.cross_entropy(exact, target, reduction="sum", ignore_index=IGNORED)
    (expected / 7).backward()
    assert logits.grad is not None and exact.grad is not None
    torch.testing.assert_close(loss.double(), expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(logits.grad.double(), exact.grad, rtol=close, atol=close * float(exact.grad.abs().max()))
    assert not logits.grad[target == IGNORED].any()


@pytest.mark.parametrize("far", [0.0, 30.0, 300.0, float("inf")])
@pytest.mark.parametrize(("dtype", "close"), [(torch.float32, 1e-5), (torch.bfloat16, 1e-2)])
@pytest.mark.parametrize("columns", [65, 20_000, 50_257])
def test_gradients_in_the_place_of_logits(columns: int, dtype: torch.dtype, close: float, far: float) -> None:
    """Also where the first logits say nothing of the size of the others, or the vocabulary begins with what can't be."""
    from flatout.objectives.token_kernels import losses_for_gradients

    logits, target = (one.detach() for one in _case(dtype, columns))
    logits[:, : columns // 2] -= far
    target[target >= 0] = target[target >= 0] // 2 + columns // 2  # one that can be
    exact = logits.double().requires_grad_()
    expected = F.cross_entropy(exact, target, reduction="none", ignore_index=IGNORED)
    expected.sum().backward()
    assert exact.grad is not None
    losses = losses_for_gradients(logits, target, IGNORED)
    torch.testing.assert_close(losses.double(), expected.detach(), rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(logits.double(), exact.grad, rtol=close, atol=close * float(exact.grad.abs().max()))
    assert not logits[target == IGNORED].any()


def test_one_logit_that_is_no_number_is_seen() -> None:
    from flatout.objectives.token_kernels import losses_for_gradients

    logits, target = (one.detach() for one in _case(torch.bfloat16, 20_000))
    logits[1, 12_345] = float("nan")
    losses = losses_for_gradients(logits, target, IGNORED)
    assert losses[1].isnan() and losses.isnan().sum() == 1


def test_a_loss_nobody_chose_a_form_for_makes_no_float32_copy() -> None:
    """Evaluation takes it."""
    logits, target = _case(torch.bfloat16, 1 << 15, rows=4096)
    with torch.no_grad():
        token_loss(logits, target, IGNORED)
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        token_loss(logits, target, IGNORED)
    assert torch.cuda.max_memory_allocated() - before < 1 << 20


def test_a_token_outside_of_the_vocabulary_gives_no_number() -> None:
    logits, target = _case(torch.bfloat16, 4096)
    target[3] = 4096
    assert token_loss(logits, target, IGNORED).isnan()


def test_more_logits_than_32_bits_can_count() -> None:
    rows, columns = 1 << 16, 1 << 15
    logits = torch.zeros(rows, columns, device="cuda", dtype=torch.bfloat16)
    logits[-1, -1] = 8.0
    target = torch.full((rows,), columns - 1, device="cuda")
    loss = token_loss(logits, target, IGNORED)
    last = F.cross_entropy(logits[-1:].double(), target[-1:], reduction="sum")
    expected = (rows - 1) * torch.log(torch.tensor(float(columns), dtype=torch.float64)) + last.cpu()
    torch.testing.assert_close(loss.double().cpu(), expected, rtol=1e-5, atol=0)
