"""Short loops, watched: which calls of a model are evaluations, and which optimizers can be fused."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import flatout as fo
from flatout.boost.remedies.fused import Fused


@pytest.mark.parametrize("goes_back", [True, False])
def test_a_line_that_seldom_runs_but_trains_is_no_evaluation(goes_back: bool) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    x, y = torch.randn(16, 8), torch.randint(0, 2, (16,))
    with fo.doctor.watch(steps=12) as watched:
        for step in range(40):
            loss = nn.functional.cross_entropy(model(x), y)
            if step % 4 == 3:
                other = nn.functional.cross_entropy(model(x.flip(0)), y)
                loss = loss + other if goes_back else loss
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    assert watched.diagnosis is not None
    seen = watched.diagnosis.case.seen
    seldom = [call for call in seen.calls if call.between and call.between < 20]
    assert len(seldom) == 1
    assert seldom[0].is_in(seen.evaluations) == (not goes_back)


@pytest.mark.parametrize("sparse", [True, False])
def test_an_optimizer_of_sparse_gradients_is_not_offered_a_fused_kernel(sparse: bool) -> None:
    """torch's fused kernels refuse them."""
    table = nn.EmbeddingBag(50, 4, mode="sum", sparse=sparse)
    optimizer = torch.optim.SGD(table.parameters(), lr=0.1)
    with fo.doctor.watch(steps=9) as watched:
        for step in range(14):
            optimizer.zero_grad()
            table(torch.arange(step, step + 8).view(4, 2)).square().mean().backward()
            optimizer.step()
    assert watched.diagnosis is not None
    offers = Fused().offers(watched.diagnosis)
    assert [one.name for one in offers] == ([] if sparse else ["fused_optimizer"])
