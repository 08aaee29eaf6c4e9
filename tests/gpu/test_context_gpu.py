"""Attention of a stretch of a sequence on a GPU: its kernels, which need no mask, see what a mask would let them see."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from flatout.engine.parallel.context import attend_to_past


@pytest.mark.parametrize(("dtype", "apart"), [(torch.bfloat16, 3e-2), (torch.float32, 1e-4), (torch.float64, 1e-9)])
def test_queries_see_the_keys_up_to_their_own(device: torch.device, dtype: torch.dtype, apart: float) -> None:
    """Flash, the efficient kernel and the plain formula; forward and backward."""
    torch.manual_seed(0)
    whole = [torch.randn(2, 3, 64, 32, dtype=torch.float64, device=device).requires_grad_() for _ in range(3)]
    right = F.scaled_dot_product_attention(*whole, is_causal=True)[..., 32:48, :]
    right.square().sum().backward()
    part = [one.detach().to(dtype).requires_grad_() for one in whole]
    query, key, value = part
    found = attend_to_past(query[..., 32:48, :], key[..., :48, :], value[..., :48, :])
    found.square().sum().backward()
    assert found.dtype == dtype and torch.allclose(found.double(), right, atol=apart)
    for mine, theirs in zip(part, whole, strict=True):
        assert mine.grad is not None and theirs.grad is not None
        assert float((mine.grad.double() - theirs.grad).abs().max() / theirs.grad.abs().max()) < apart
