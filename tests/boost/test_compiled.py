"""What boost compiles is compiled: torch's own containers, too, which the compiler passes over when they come first."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.utils import counters

from flatout.boost.hooks import Hooks
from flatout.boost.remedies.all import REMEDIES
from flatout.doctor.observing.calling import is_of_torch
from flatout.doctor.seen import Calls


class Own(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 4), nn.ReLU())

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


@contextmanager
def compiling() -> Iterator[None]:
    torch._dynamo.reset()
    counters.clear()
    hooks = Hooks()
    REMEDIES["compile"].apply("on", hooks)
    hooks.install()
    try:
        yield
    finally:
        hooks.patches.restore()
        torch._dynamo.reset()


@pytest.mark.parametrize("make", [Own, lambda: nn.Sequential(nn.Linear(4, 4), nn.ReLU()), lambda: nn.Linear(4, 4)])
def test_a_model_is_compiled_whoever_wrote_it(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    # with no code generated: whether there is anything to generate it from is what is looked at
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
    model, x = make(), torch.randn(3, 4)
    expected = model(x)
    with compiling():
        output = model(x)
        output.sum().backward()
        assert counters["stats"]["unique_graphs"] == 1
    torch.testing.assert_close(output, expected)
    assert next(model.parameters()).grad is not None
    assert copy.deepcopy(model)(x).shape == output.shape
    assert [name for name in model.state_dict() if "orig_mod" in name] == []


def test_what_torch_made_of_a_model_is_left_to_torch() -> None:
    x = torch.randn(3, 4)
    for model in (torch.jit.trace(Own(), x), torch.fx.symbolic_trace(Own())):
        with compiling():
            assert model(x).shape == (3, 4)


@pytest.mark.parametrize(("model", "of_torch"), [("Own()", False), ("nn.Sequential(nn.Linear(4, 4), nn.ReLU())", True)])
def test_the_patch_compiles_what_torch_would_compile(model: str, of_torch: bool, tmp_path: Path) -> None:
    """`model.compile()` does nothing to torch's own containers: there it is in flatout's line."""
    place = str(tmp_path / "train.py")
    calls = Calls("Own", f"{place}:9", True, True, "", "float32", "cpu", False, None, False, of_torch=of_torch)
    case = SimpleNamespace(training_calls=[calls], optimizer=SimpleNamespace(made=f"{place}:7"))
    edits = REMEDIES["compile"].edits("on", SimpleNamespace(case=case))  # type: ignore[arg-type]
    assert [edit.statement for edit in edits] == ([] if of_torch else ["{model}.compile()"])
    torch._dynamo.reset()
    counters.clear()
    made: Any = eval(model)
    made.compile(backend="eager")
    made(torch.randn(3, 4))
    assert (counters["stats"]["unique_graphs"] == 0) == of_torch


def test_who_wrote_a_forward() -> None:
    x = torch.randn(3, 4)
    assert is_of_torch(nn.Linear(4, 4)) and is_of_torch(type("Named", (nn.Sequential,), {})(nn.Linear(4, 4)))
    for model in (Own(), torch.jit.script(nn.Linear(4, 4)), torch.jit.trace(Own(), x), torch.fx.symbolic_trace(Own())):
        assert not is_of_torch(model)
    assert not is_of_torch(torch.export.export(Own(), (x,)).module())
