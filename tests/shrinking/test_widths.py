"""What can be cut out of a model, and that the rest computes as before."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from flatout.packaging.capture import capture
from flatout.shrinking.training.sizes import flops_of, narrowed, weights_of
from flatout.shrinking.training.surgery import cut
from flatout.shrinking.training.widths import Width, widths_of


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
        (lambda: Residual(False), PICTURES, {"first": "a residual connection", "one": "a residual connection"}),
        (Gated, ROWS, {"first": "multiplied with another value", "gate": "multiplied with another value"}),
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


def test_inside_of_a_residual_block_a_layer_can_be_cut() -> None:
    widths, _ = followed(Residual(True), PICTURES)
    assert [name for name, one in widths.items() if not one.why_not] == ["one"]


def test_the_cut_is_the_widest_that_has_the_share_of_the_work() -> None:
    model = nn.Sequential(nn.Linear(6, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4))
    widths, x = followed(model, ROWS)
    worth = {name: torch.arange(64.0) for name in ("0", "2")}
    flops = lambda some: flops_of(lambda: some(x))  # noqa: E731
    smaller = narrowed(model, list(widths.values()), worth, flops, 0.5)
    assert 0.4 < flops(smaller) / flops(model) <= 0.5
    assert torch.equal(smaller[0].weight, model[0].weight[-len(smaller[0].weight) :]), "the channels of the most worth stay"
