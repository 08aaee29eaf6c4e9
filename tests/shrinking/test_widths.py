"""What can be cut out of a model, and that the rest computes as before."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from flatout.models.gpt import gpt
from flatout.packaging.capture import capture
from flatout.shrinking.training.cuts import Width
from flatout.shrinking.training.sizes import flops_of, narrowed, weights_of
from flatout.shrinking.training.surgery import cut
from flatout.shrinking.training.widths import widths_of


class Whole(nn.Module):
    """As a package has it: the model by this name, and its answers as a dict."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, *columns: Tensor) -> dict[str, Tensor]:
        return {"probabilities": self.model(*columns).softmax(1)}


class Residual(nn.Module):
    """Both branches of each sum come from a layer; between them `inner` is free."""

    def __init__(self, inner: bool) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding=1)
        self.one = nn.Conv2d(8, 8, 3, padding=1)
        self.two = nn.Conv2d(8, 8, 3, padding=1) if inner else nn.Identity()
        self.head = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x).relu()
        return self.head((x + self.two(self.one(x).relu())).mean((2, 3)))


class Gated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.gate, self.head = nn.Linear(6, 12), nn.Linear(6, 12), nn.Linear(12, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.first(x) * self.gate(x).sigmoid())


class WithItself(nn.Module):
    """The input of the model is added, whose width is not a layer's."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.head = nn.Linear(6, 6), nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x + self.inner(x).relu())


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.shared, self.head = nn.Linear(6, 6), nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.shared(self.shared(x).relu()).relu())


class Swish(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(6, 12), nn.Linear(12, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        return self.head(x * x.sigmoid() * 2)


def convolutions() -> nn.Module:
    """conv, batch norm, pooling; a depthwise convolution; flatten before the linear layers."""
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(8, 8, 3, padding=1, groups=8), nn.ReLU(), nn.Conv2d(8, 6, 1), nn.AvgPool2d(2), nn.ReLU(),
        nn.Flatten(), nn.Linear(6 * 4, 10), nn.ReLU(), nn.Dropout(0.5), nn.Linear(10, 4),
    )  # fmt: skip


PICTURES, ROWS = (5, 3, 8, 8), (5, 6)


def followed(model: nn.Module, shape: tuple[int, ...]) -> tuple[dict[str, Width], Tensor]:
    torch.manual_seed(0)
    x = torch.randn(shape)
    model(x)  # batch norm sees some numbers
    captured = capture(Whole(model.eval()), {"x": x})
    return {one.layer: one for one in widths_of(captured.program, model, captured.weights, {"x": x})}, x


@pytest.mark.parametrize(
    ("make", "shape", "layers"),
    [
        (convolutions, PICTURES, ["0", "6", "10"]),
        (lambda: nn.Sequential(nn.Linear(6, 12), nn.BatchNorm1d(12), nn.GELU(), nn.Linear(12, 8), nn.Tanh(), nn.Linear(8, 4)),
         ROWS, ["0", "3"]),
        (lambda: nn.Sequential(nn.Conv2d(3, 8, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4)), PICTURES, ["0"]),
        (Swish, ROWS, ["first"]),
        (Gated, ROWS, ["first"]),
        (lambda: Residual(False), PICTURES, ["first"]),
        (lambda: Residual(True), PICTURES, ["first", "one"]),
        (lambda: nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.MaxPool2d(2),
                               nn.Conv2d(8, 6, 3), nn.BatchNorm2d(6), nn.Flatten(), nn.Linear(6, 4)), PICTURES, ["0", "4"]),
    ],
)  # fmt: skip
def test_channels_that_nobody_reads_are_cut_without_a_difference(
    make: Callable[[], nn.Module], shape: tuple[int, ...], layers: list[str]
) -> None:
    """Where every reader has a 0 for a channel, the model without it gives the same answers, bit for bit or nearly."""
    model = make()
    widths, x = followed(model, shape)
    assert [name for name, one in widths.items() if not one.why_not] == layers
    kept = {name: torch.arange(1, widths[name].size, 2) for name in layers}
    with torch.no_grad():
        for name in layers:
            for one in widths[name].readers:
                weight = dict(model.named_parameters())[one.weight.removeprefix("model.")]
                mask = torch.zeros(widths[name].size).index_fill(0, kept[name], 1.0).repeat_interleave(one.block)
                weight.mul_(mask.reshape(-1, *[1] * (weight.dim() - 2)))
        smaller = cut(model, list(widths.values()), kept)
        torch.testing.assert_close(smaller(x), model(x), atol=1e-5, rtol=1e-5)
    assert weights_of(smaller) < 0.7 * weights_of(model)
    for module in smaller.modules():  # what a module says of itself fits its weights
        if isinstance(module, nn.Linear):
            assert module.weight.shape == (module.out_features, module.in_features)
        if isinstance(module, nn.Conv2d):
            assert module.weight.shape[:2] == (module.out_channels, module.in_channels // module.groups)


def test_a_layer_norm_follows_its_layer() -> None:
    model = nn.Sequential(nn.Linear(6, 12), nn.LayerNorm(12), nn.ReLU(), nn.Linear(12, 4))
    widths, x = followed(model, ROWS)
    assert not widths["0"].why_not
    assert cut(model, list(widths.values()), {"0": torch.arange(5)})(x).shape == (5, 4)


@pytest.mark.parametrize(
    ("make", "shape", "words"),
    [
        (WithItself, ROWS, {"inner": "added to a value that no layer of the same width makes"}),
        (Tied, ROWS, {"head": "softmax"}),
        (lambda: nn.Sequential(nn.Conv2d(3, 8, 3, groups=1), nn.Conv2d(8, 4, 1, groups=2), nn.Flatten(), nn.Linear(144, 4)),
         PICTURES, {"0": "a convolution in groups", "1": "in groups"}),
        (lambda: nn.Sequential(nn.Linear(6, 4)), ROWS, {"0": "softmax"}),
    ],
)  # fmt: skip
def test_a_width_that_ends_elsewhere_is_refused_with_the_reason(
    make: Callable[[], nn.Module], shape: tuple[int, ...], words: dict[str, str]
) -> None:
    widths, _ = followed(make(), shape)
    assert all(one.why_not for one in widths.values())
    for layer, expected in words.items():
        assert expected in widths[layer].why_not


def token_model(tied: bool = True) -> tuple[nn.Module, dict[str, Width], Tensor]:
    torch.manual_seed(0)
    model = gpt(vocabulary=20, window=16, layers=2, heads=2, width=16, tied=tied, bias=True).eval()
    x = torch.randint(0, 20, (3, 16))
    captured = capture(Whole(model), {"x": x})
    return model, {one.layer: one for one in widths_of(captured.program, model, captured.weights, {"x": x})}, x


@pytest.mark.parametrize("tied", [True, False])
def test_a_transformer_gets_a_narrower_stream_heads_and_hidden_layers(tied: bool) -> None:
    model, widths, x = token_model(tied)
    free = {name: one for name, one in widths.items() if not one.why_not}
    stream = f"the table {'head' if tied else 'tokens'}"
    assert free[stream].size == 16
    assert {name for name in free if name != stream} == {
        f"blocks.{block}.{layer}" for block in range(2) for layer in ("attention.qkv", "expand")
    }
    kept = {name: torch.arange(one.size // 2) for name, one in free.items()}
    smaller = cut(model, list(widths.values()), kept)
    assert smaller(x).shape == (3, 16, 20) and weights_of(smaller) < 0.4 * weights_of(model)
    assert (smaller.head.weight is smaller.tokens.weight) is tied
    assert smaller.blocks[0].attention.qkv.weight.shape == (24, 8), "two heads of 4 instead of 8, of queries, keys and values"
    assert capture(Whole(smaller), {"x": x}).program.nodes


@pytest.mark.parametrize("heads_of", ["one layer", "three layers"])
def test_numbers_of_a_head_that_are_all_zero_are_cut_without_a_difference(heads_of: str) -> None:
    """The products of queries and keys are divided by the root of what is left, which the cut makes up for."""
    model: nn.Module = Attention()
    x = torch.randn(3, 5, 12)
    if heads_of == "one layer":
        model, _, x = token_model()
    captured = capture(Whole(model.eval()), {"x": x})
    widths = widths_of(captured.program, model, captured.weights, {"x": x})
    name = "blocks.0.attention.qkv" if heads_of == "one layer" else "query"
    width = next(one for one in widths if one.layer == name)
    assert not width.why_not and width.size == {"one layer": 8, "three layers": 6}[heads_of]
    kept = torch.tensor([0, 2, 3])
    with torch.no_grad():
        mask = torch.zeros(width.size).index_fill(0, kept, 1.0)
        for one in width.makers:
            weight = dict(model.named_parameters())[one.weight.removeprefix("model.")]
            weight.mul_(mask.repeat(one.repeat).reshape(-1, *[1] * (weight.dim() - 1)))
        torch.testing.assert_close(cut(model, widths, {name: kept})(x), model(x), atol=1e-5, rtol=1e-5)


class Attention(nn.Module):
    """Its sizes follow from its weights."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(12, 12) for _ in range(3))
        self.out = nn.Linear(12, 4)

    def forward(self, x: Tensor) -> Tensor:
        parts = [layer(x).unflatten(-1, (2, -1)).transpose(1, 2) for layer in (self.query, self.key, self.value)]
        mixed = nn.functional.scaled_dot_product_attention(*parts)
        return self.out(mixed.transpose(1, 2).flatten(2)).mean(1)


def test_the_cut_is_the_widest_that_has_the_share_of_the_work() -> None:
    model = nn.Sequential(nn.Linear(6, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4))
    widths, x = followed(model, ROWS)
    worth = {name: torch.arange(64.0) for name in ("0", "2")}
    flops = lambda some: flops_of(lambda: some(x))  # noqa: E731
    smaller = narrowed(model, list(widths.values()), worth, flops, 0.5)
    assert 0.4 < flops(smaller) / flops(model) <= 0.5
    assert torch.equal(smaller[0].weight, model[0].weight[-len(smaller[0].weight) :]), "the channels of the most worth stay"
