"""What wraps a model or looks at it from outside changes nothing for remedies, and they change nothing for it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import nn

from flatout.boost.hooks import Hooks


@pytest.fixture
def hooks() -> Iterator[Hooks]:
    found = Hooks()
    yield found
    found.patches.restore()


def test_remedies_get_the_model_that_a_wrapper_calls(hooks: Hooks) -> None:
    seen = []
    hooks.prepare.append(lambda module: seen.append(type(module)) or True)
    hooks.install()
    nn.DataParallel(nn.Linear(3, 3))(torch.randn(2, 3))
    assert seen == [nn.Linear]


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning", "ignore:`torch.jit:DeprecationWarning")
def test_a_trace_sees_the_model_alone(hooks: Hooks) -> None:
    model, x = nn.Sequential(nn.Linear(3, 3), nn.Tanh()), torch.randn(4, 3)
    plain = str(torch.jit.trace(model, x).graph)
    hooks.inputs.append(lambda module, args, named: ((args[0] + 0.0,), named))
    hooks.install()
    assert str(torch.jit.trace(model, x).graph).count("aten::") == plain.count("aten::")
    model(x)
