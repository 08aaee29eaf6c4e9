"""A model can be scripted in a boosted process as in a plain one."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from flatout.boost.hooks import Hooks
from flatout.boost.remedies.all import REMEDIES


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning", "ignore:`torch.jit:DeprecationWarning")
@pytest.mark.parametrize(("name", "value"), [("quick_dropout", "on"), ("aligned_products", 64), ("cuda_graphs", "on")])
def test_a_model_can_be_scripted_at_the_end(name: str, value: object) -> None:
    layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True)
    model = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False).eval()
    hooks, x = Hooks(), torch.randn(2, 4, 16)
    plain = model(x)
    REMEDIES[name].apply(value, hooks)
    hooks.install()
    try:
        changed = F.dropout, F.linear, torch.jit.script
        scripted = torch.jit.script(model)
        assert (F.dropout, F.linear, torch.jit.script) == changed  # they are back
        assert torch.allclose(scripted(x), plain, atol=1e-5)
    finally:
        hooks.patches.restore()
    assert torch.jit.script is not changed[2]
