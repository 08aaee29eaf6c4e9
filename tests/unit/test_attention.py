"""Attention by a kernel of choice: torch's own in an order, or flex attention where a model offers a place for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from test_engine_kit import kinds, train
from torch import Tensor, nn
from torch.nn.attention import _cur_sdpa_kernel_backends

from flatout.engine.attention import attend_flexibly, attention_kernel, offers_hook, use_flex


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(16, 48)
        self.attend: Any = F.scaled_dot_product_attention

    def forward(self, x: Tensor, **how: Any) -> Tensor:
        query, key, value = (part.unflatten(-1, (2, -1)).transpose(1, 2) for part in self.qkv(x).chunk(3, dim=-1))
        mixed: Tensor = self.attend(query, key, value, **how)
        return mixed.transpose(1, 2).flatten(2)


class Compiled:
    """Compiles a call and says whether flex attention is in it."""

    def __init__(self) -> None:
        self.graphs: list[str] = []

    def backend(self, graph: Any, inputs: list[Any]) -> Any:
        self.graphs.append(graph.print_readable(print_output=False))
        return graph

    def __call__(self, model: nn.Module, x: Tensor, **how: Any) -> Tensor:
        torch._dynamo.reset()
        found: Tensor = torch.compile(model, backend=self.backend, fullgraph=True)(x, **how)
        return found

    @property
    def flexed(self) -> bool:
        return any("flex_attention" in graph for graph in self.graphs)


@pytest.fixture
def model() -> Attention:
    torch.manual_seed(0)
    return Attention()


@pytest.fixture
def x() -> Tensor:
    return torch.randn(2, 40, 16)


@pytest.mark.parametrize("how", [{"is_causal": True}, {}, {"is_causal": True, "scale": 0.2}], ids=str)
@torch.no_grad()
def test_flex_gives_what_torch_gives(model: Attention, x: Tensor, how: dict[str, Any]) -> None:
    plain = model(x, **how)
    assert offers_hook(model) and use_flex(model) == 1
    compiled = Compiled()
    torch.testing.assert_close(compiled(model, x, **how), plain, atol=1e-6, rtol=1e-5)
    assert compiled.flexed


@pytest.mark.parametrize("how", [{"attn_mask": torch.ones(40, 40).tril().bool()}, {"dropout_p": 0.5}], ids=["mask", "dropout"])
@torch.no_grad()
def test_a_mask_and_dropout_are_left_to_torch(model: Attention, x: Tensor, how: dict[str, Any]) -> None:
    use_flex(model)
    compiled = Compiled()
    compiled(model, x, **how)
    assert compiled.graphs and not compiled.flexed


def test_what_is_not_compiled_and_a_backward_on_a_cpu_are_left_to_torch(model: Attention, x: Tensor) -> None:
    plain = torch.autograd.grad(model(x, is_causal=True).square().sum(), model.qkv.weight)[0]
    use_flex(model)
    eager = torch.autograd.grad(model(x, is_causal=True).square().sum(), model.qkv.weight)[0]
    assert torch.equal(eager, plain)
    compiled = Compiled()
    assert torch.equal(torch.autograd.grad(compiled(model, x, is_causal=True).square().sum(), model.qkv.weight)[0], plain)
    assert not compiled.flexed


def test_a_model_without_a_place_for_it_is_left_as_it_is() -> None:
    model = nn.TransformerEncoderLayer(16, 2)
    assert not offers_hook(model) and use_flex(model) == 0


def test_a_run_of_such_a_model_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flatout.engine.passes.compiler", lambda mode, shapes_vary: lambda compute: compute)
    run = train(tmp_path, settings={"attention": "flex", "compile": "on"}, budget="2 steps")
    (event,) = kinds(run, "degraded")
    assert event["what"] == "attention" and "`attend`" in event["why"]


def test_it_takes_what_torch_takes() -> None:
    query, key = torch.randn(1, 4, 8, 16), torch.randn(1, 2, 8, 16)
    ours = attend_flexibly(query, key, key, None, 0.0, True, scale=0.5, enable_gqa=True)
    assert torch.equal(ours, F.scaled_dot_product_attention(query, key, key, is_causal=True, scale=0.5, enable_gqa=True))


@pytest.mark.parametrize("name", ["flash", "cudnn", "efficient", "math"])
def test_the_kernel_of_choice_comes_first_and_none_is_lost(name: str) -> None:
    with attention_kernel(name)():
        order = _cur_sdpa_kernel_backends(with_priority=True)
    assert name in str(order[0]).lower() and len(order) == 4


@pytest.mark.parametrize("name", ["auto", "flex"])
def test_else_the_order_is_torchs_own(name: str) -> None:
    before = _cur_sdpa_kernel_backends(with_priority=True)
    with attention_kernel(name)():
        assert _cur_sdpa_kernel_backends(with_priority=True) == before
