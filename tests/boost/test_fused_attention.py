"""Attention as people write it becomes one kernel, and everything else stays as it was written."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from flatout.boost.hooks import Hooks
from flatout.boost.remedies.fused_attention import FusedAttention

Attention = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


@contextmanager
def remedied() -> Iterator[list[bool]]:
    """A list with True for each call of the kernel."""
    hooks, kernel, called = Hooks(), F.scaled_dot_product_attention, list[bool]()

    def counted(*args: object, **named: object) -> Tensor:
        called.append(True)
        return kernel(*args, **named)  # type: ignore[arg-type]

    FusedAttention().apply("on", hooks)
    hooks.patches.wrap(F, "scaled_dot_product_attention", lambda _: counted)
    hooks.install()
    try:
        yield called
    finally:
        hooks.patches.restore()


def of_a_language_model(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    weights = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
    weights = weights.masked_fill(mask == 0, float("-inf"))
    return F.dropout(F.softmax(weights, dim=-1), 0.0) @ v


def with_a_large_number(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    scores = torch.matmul(q, k.transpose(-2, -1)) / math.sqrt(q.size(-1))
    return torch.matmul(scores.masked_fill(mask == 0, -1e9).softmax(dim=-1), v)


def with_letters(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    dots = torch.einsum("b h i d, b h j d -> b h i j", q, k) * 0.2
    dots.masked_fill_(mask == 0, -torch.finfo(dots.dtype).max)
    return torch.einsum("b h i j, b h j d -> b h i d", nn.Softmax(dim=-1)(dots), v)


def with_heads_last(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    q, k, v = (one.transpose(1, 2) for one in (q, k, v))
    energy = torch.einsum("nqhd,nkhd->nhqk", q, k).masked_fill(mask == 0, float("-1e20"))
    return torch.einsum("nhql,nlhd->nqhd", torch.softmax(energy / 4, dim=3), v).transpose(1, 2)


def in_half_a_step(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    scores = torch.matmul(q, k.transpose(2, 3)) / math.sqrt(q.shape[-1])
    scores = scores + torch.zeros(mask.shape).masked_fill(mask == 0, float("-inf"))
    return torch.matmul(F.softmax(scores.float(), dim=-1).type_as(q), v)


def in_place(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    scores = q @ k.mT
    scores /= 4
    scores += torch.linspace(-1, 1, mask.shape[-1])
    weights = torch.where(mask > 0, scores, -1e4).softmax(-1)
    return torch.matmul(weights, v)


def with_one_batch_of_heads(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    shape = v.shape
    q, k, v = (one.flatten(0, 1) for one in (q, k, v))
    weights = torch.baddbmm((mask[0, 0] - 1) * 1e4, q, k.transpose(1, 2), alpha=0.25).softmax(-1)
    return torch.bmm(weights, v).view(shape)


FORMS: list[Attention] = [
    of_a_language_model, with_a_large_number, with_letters, with_heads_last, in_half_a_step, in_place, with_one_batch_of_heads,
]  # fmt: skip


def drawn(seed: int = 0) -> list[Tensor]:
    draw = torch.Generator().manual_seed(seed)
    return [torch.randn(2, 3, 40, 16, generator=draw).requires_grad_() for _ in range(3)]


MASK = torch.tril(torch.ones(40, 40)).view(1, 1, 40, 40)


def with_gradients(attention: Attention, mask: Tensor = MASK) -> list[Tensor]:
    given = drawn()
    result = attention(*given, mask)
    result.square().sum().backward()
    return [result.detach(), *(one.grad for one in given if one.grad is not None)]


@pytest.mark.parametrize("attention", FORMS, ids=lambda one: one.__name__)
def test_it_is_one_kernel_with_the_same_result_and_gradients(attention: Attention) -> None:
    mask = MASK.clone()
    if attention in (with_a_large_number, with_letters):
        mask[..., 7, :] = 0  # a row of padding looks at all keys alike
    plain = with_gradients(attention, mask)
    with remedied() as called:
        fused = with_gradients(attention, mask)
    assert called == [True] and len(fused) == 4
    for one, other in zip(plain, fused, strict=True):
        torch.testing.assert_close(other, one, atol=2e-5, rtol=1e-4)


def with_a_stable_softmax(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    scores = q @ k.mT
    return (scores - scores.amax(-1, keepdim=True)).softmax(-1) @ v


def with_a_learned_scale(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    return ((q @ k.mT) * q.mean()).softmax(-1) @ v


def over_the_queries(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    return (q @ k.mT).softmax(-2) @ v


def without_a_softmax(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    return ((q @ k.mT) / 40 * mask) @ v


def with_a_second_use(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    weights = (q @ k.mT).softmax(-1)
    return weights @ v + weights.pow(2).sum(-1, keepdim=True)


def masked_afterwards(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    return ((q @ k.mT).softmax(-1) * mask) @ v


def written_into_another(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    kept = torch.zeros(2, 3, 40, 40)
    kept[...] = q @ k.mT
    kept.add_(1.0)
    return torch.stack([kept, q @ k.mT]).sum(0).softmax(-1) @ v


def with_two_large_numbers(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    late = torch.arange(40) > 20  # a row that is hidden as a whole looks at those that are hidden less
    return (q @ k.mT).masked_fill(mask == 0, -1e9).masked_fill(late[:, None], -1e4).softmax(-1) @ v


def with_a_large_number_after_infinity(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    late = torch.arange(40) > 20
    scores = (q @ k.mT).masked_fill(mask == 0, -math.inf)
    return scores.masked_fill(late[:, None], -1e9).softmax(-1) @ v


@pytest.mark.parametrize(
    "attention",
    [
        with_a_stable_softmax, with_a_learned_scale, over_the_queries, without_a_softmax, with_a_second_use, masked_afterwards,
        written_into_another, with_two_large_numbers, with_a_large_number_after_infinity,
    ],
    ids=lambda one: one.__name__,
)  # fmt: skip
def test_what_is_not_quite_attention_is_computed_as_written(attention: Attention) -> None:
    plain = with_gradients(attention)
    with remedied():
        ours = with_gradients(attention)
    for one, other in zip(plain, ours, strict=True):
        torch.testing.assert_close(other, one, atol=2e-5, rtol=1e-4)


def test_weights_that_a_script_looks_at_are_those_that_it_wrote() -> None:
    q, k, v = drawn()
    plain = F.softmax(q @ k.mT, -1)
    with remedied() as called:
        weights = F.softmax(q @ k.mT, -1)
        _ = weights @ v
        assert called == [True] and weights.shape == plain.shape and weights.dtype == plain.dtype and weights.requires_grad
        with torch.no_grad():
            assert torch.equal(deepcopy(weights.detach()), plain)
        (weights**2).sum().backward()  # was asked for inside of no_grad first
    assert q.grad is not None and q.grad.abs().sum() > 0
    with remedied():
        scores = q.detach() @ k.detach().mT
        assert scores.tolist() == (q @ k.mT).tolist() and "tensor" in repr(scores)


def test_weights_that_multihead_attention_returns_cost_nothing_until_they_are_read() -> None:
    torch.manual_seed(0)
    layer, x = nn.MultiheadAttention(32, 4, batch_first=True), torch.randn(2, 40, 32)
    plain, of_heads = layer(x, x, x)
    with remedied() as called:
        fused, weights = layer(x, x, x)
        assert called == [True]
        torch.testing.assert_close(fused, plain)
        torch.testing.assert_close(weights + 0, of_heads)


def test_a_query_that_is_changed_before_its_scores_are_used_is_an_error_and_no_wrong_number() -> None:
    q, k, v = (one.detach() for one in drawn())
    with remedied():
        weights = (q @ k.mT).softmax(-1)
        q.mul_(2)
        with pytest.raises(RuntimeError, match="can't use fused_attention"):
            weights @ v


def test_under_autocast_results_have_the_type_that_they_have_without() -> None:
    given = [one.detach() for one in drawn()]
    with torch.autocast("cpu", torch.bfloat16):
        plain = of_a_language_model(*given, MASK)
        with remedied() as called:
            fused = of_a_language_model(*given, MASK)
    assert called == [True] and fused.dtype == plain.dtype == torch.bfloat16
    torch.testing.assert_close(fused, plain, atol=0.03, rtol=0.03)


def test_dropout_of_weights_drops_as_many() -> None:
    torch.manual_seed(0)
    q, k, v = torch.zeros(4, 8, 64, 16), torch.zeros(4, 8, 64, 16), torch.ones(4, 8, 64, 16)
    with remedied() as called:
        result = F.dropout((q @ k.mT).softmax(-1), 0.25) @ v
    n = 4 * 8 * 64 * 64
    assert called == [True] and float(result.mean()) == pytest.approx(1.0, abs=4 * (0.25 / 0.75 / n) ** 0.5 + 1e-4)
    assert float(result.std()) > 0.01


def test_a_model_that_is_compiled_or_traced_is_left_to_the_compiler() -> None:
    given = [one.detach() for one in drawn()]
    plain = of_a_language_model(*given, MASK)
    with remedied() as called:
        compiled = torch.compile(of_a_language_model, backend="aot_eager", fullgraph=True)
        torch.testing.assert_close(compiled(*given, MASK), plain)
        of_each = torch.func.vmap(lambda q, k: (q @ k.mT).softmax(-1))(*given[:2])
        torch.testing.assert_close(of_each @ given[2], (given[0] @ given[1].mT).softmax(-1) @ given[2])
        assert len(called) == 1  # the last line's own
