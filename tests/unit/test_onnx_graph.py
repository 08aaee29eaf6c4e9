"""Modules as ONNX models: any number of rows, named inputs and outputs, and a reason where it can't be done."""

from __future__ import annotations

import sys

import numpy as np
import onnx
import pytest
import torch
from onnx_models import answers, port
from torch import Tensor, nn

from flatout.base.errors import MissingExtra, NotExportable
from flatout.packaging.onnx_graph import OPSET, onnx_model
from flatout.packaging.ports import Port


class Pair(nn.Module):
    """Two inputs, one of them of any length; tied weights, a buffer, and two outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 6)
        self.head = nn.Linear(6, 11, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("shift", torch.arange(6.0))

    def forward(self, tokens: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
        hidden = self.embed(tokens).mean(1) * scale + self.shift
        logits = self.head(hidden)
        return logits.argmax(1), logits.softmax(1)


TOKENS, SCALE = Port("tokens", "int64", (None, None)), Port("scale", "float32", (None, 1))
NUMBER, CHANCE = Port("prediction", "int64", (None,)), Port("probabilities", "float32", (None, 11))


@pytest.fixture(scope="module")
def pair() -> tuple[Pair, onnx.ModelProto]:
    torch.manual_seed(0)
    module = Pair().eval()
    samples = (torch.randint(0, 11, (1, 7)), torch.rand(1, 1))  # one row: the model must take any number of them
    return module, onnx_model(module, (TOKENS, SCALE), (NUMBER, CHANCE), samples)


@pytest.mark.parametrize(("rows", "length"), [(1, 3), (5, 7), (64, 20)])
def test_open_sizes_are_of_any_size(pair: tuple[Pair, onnx.ModelProto], rows: int, length: int) -> None:
    module, model = pair
    tokens, scale = torch.randint(0, 11, (rows, length)), torch.rand(rows, 1)
    found = answers(model, {"tokens": tokens.numpy(), "scale": scale.numpy()})
    with torch.no_grad():
        prediction, chances = module(tokens, scale)
    assert found["prediction"].tolist() == prediction.tolist()
    np.testing.assert_allclose(found["probabilities"], chances.numpy(), atol=1e-6)


def test_names_sizes_and_opset_are_stated_and_nothing_of_this_machine(pair: tuple[Pair, onnx.ModelProto]) -> None:
    _, model = pair
    sizes = {
        value.name: [size.dim_param or size.dim_value for size in value.type.tensor_type.shape.dim]
        for value in (*model.graph.input, *model.graph.output)
    }
    assert sizes == {
        "tokens": ["rows", "tokens_1"], "scale": ["rows", 1], "prediction": ["rows"], "probabilities": ["rows", 11],
    }  # fmt: skip
    assert [(opset.domain, opset.version) for opset in model.opset_import] == [("", OPSET)]
    assert not model.graph.value_info and not model.metadata_props
    assert b".py" not in model.SerializeToString()
    assert sum(len(weight.raw_data) for weight in model.graph.initializer) < 2 * 11 * 6 * 4  # tied weights are stored once


def test_a_missing_operator_is_named() -> None:
    class Odd(nn.Module):
        def forward(self, x: Tensor) -> tuple[Tensor]:
            return (torch.special.airy_ai(x),)

    with pytest.raises(NotExportable, match=r"aten\.special_airy_ai") as raised:
        onnx_model(Odd(), (port("x", torch.rand(2, 3)),), (Port("y", "float32", (None, 3)),), (torch.rand(2, 3),))
    assert "\n" not in str(raised.value)


def test_control_flow_that_depends_on_data_is_refused() -> None:
    class Choosy(nn.Module):
        def forward(self, x: Tensor) -> tuple[Tensor]:
            return (x if x.sum() > 0 else -x,)

    with pytest.raises(NotExportable) as raised:
        onnx_model(Choosy(), (port("x", torch.rand(2, 3)),), (Port("y", "float32", (None, 3)),), (torch.rand(2, 3),))
    assert "\n" not in str(raised.value)


def test_a_fixed_number_of_rows_is_refused() -> None:
    class Fixed(nn.Module):
        def forward(self, x: Tensor) -> tuple[Tensor]:
            return (x + torch.ones(4, 1),)

    with pytest.raises(NotExportable):
        onnx_model(Fixed(), (Port("x", "float32", (None, 3)),), (Port("y", "float32", (None, 3)),), (torch.rand(4, 3),))


def test_without_onnx_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(MissingExtra, match=r"onnx.*flatout\[export\]"):
        onnx_model(nn.Identity(), (port("x", torch.rand(2, 3)),), (), (torch.rand(2, 3),))
