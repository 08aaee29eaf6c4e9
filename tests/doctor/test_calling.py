"""Which calls of a model are evaluations, and which only train now and then."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import flatout as fo


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
