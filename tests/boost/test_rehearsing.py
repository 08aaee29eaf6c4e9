"""A call is rehearsed the way that it is captured: whoever asks whether it is, is told so, and nobody reads a mask."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any
from unittest.mock import MagicMock

import pytest
import torch
from torch import Tensor, nn
from torch.nn.modules import transformer

from flatout.boost.remedies.call_form import flattened
from flatout.boost.remedies.graph_capture import _Rehearsal, _warmed_up
from flatout.boost.remedies.host_made import HostMade, NotAlone
from flatout.boost.remedies.model_state import HostState

DEVICE = "meta"  # any that is not the host


class Masked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)

    def forward(self, x: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1], device=x.device)
        return self.layers(x, mask=mask)  # type: ignore[no-any-return]


class Asks(nn.Linear):
    """As models of transformers do."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x if torch.cuda.is_current_stream_capturing() else x.clone())


class Reads(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return x if (x == 0).all() else super().forward(x)


class MakesItsOwn(nn.Linear):
    kept: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        if self.kept is None:
            self.kept = torch.arange(8.0).to(x.device)
        return super().forward(x + self.kept) * torch.tensor([2.0], device=x.device)


class SetsItselfUp(nn.Linear):
    """By the first batch that it gets."""

    ready = False

    def forward(self, x: Tensor) -> Tensor:
        if not self.ready:
            with torch.no_grad():
                self.weight.div_(x.std())
            self.ready = True
        return super().forward(x)


class CountsUnlessCaptured(nn.Linear):
    seen = 0

    def forward(self, x: Tensor) -> Tensor:
        if not torch.cuda.is_current_stream_capturing():
            self.seen += 1
        return super().forward(x)


class WritesUnlessCaptured(nn.Linear):
    def __init__(self) -> None:
        super().__init__(8, 8)
        self.mean = torch.zeros(8)

    def _apply(self, function: Any, recurse: bool = True) -> Any:
        self.mean = function(self.mean)
        return super()._apply(function, recurse)

    def forward(self, x: Tensor) -> Tensor:
        if not torch.cuda.is_current_stream_capturing():
            self.mean.lerp_(x.mean((0, 1)), 0.1)
        return super().forward(x) + self.mean


class Sums(WritesUnlessCaptured):
    def forward(self, x: Tensor) -> Tensor:
        self.mean.lerp_(x.mean((0, 1)), 0.1)
        return nn.Linear.forward(self, x) + self.mean


class Normalized(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Linear(8, 8), nn.BatchNorm1d(4))


def warmed_up(model: nn.Module, called_before: bool = True) -> None:
    """As on a device, but for its streams."""
    model.to(DEVICE).train()
    x = torch.zeros(2, 4, 8, device=DEVICE)
    if called_before:
        model(x)
    leaves, form = flattened((x,), {})
    rehearsal = _Rehearsal(model, leaves, form)
    host_made = HostMade(model, rehearsal.stand_ins.values())
    _warmed_up(rehearsal, host_made, HostState(model), torch.cuda.Stream())


@pytest.fixture(autouse=True)
def no_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("Stream", "current_stream"):
        monkeypatch.setattr(torch.cuda, name, MagicMock())
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: nullcontext())
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", not_captured)


def not_captured() -> bool:
    return False


@pytest.mark.parametrize("make", [lambda: Asks(8, 8), lambda: MakesItsOwn(8, 8), Sums, Normalized])
def test_a_call_is_rehearsed(make: Callable[[], nn.Module]) -> None:
    warmed_up(make())
    assert torch.cuda.is_current_stream_capturing is not_captured


def test_nobody_looks_at_a_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    looked = MagicMock(return_value=False)
    monkeypatch.setattr(transformer, "_detect_is_causal_mask", looked)
    warmed_up(Masked())
    assert looked.call_count == 2  # by the script's own call, and by the one that shows what it does for itself


def test_a_value_that_is_read_all_the_same_is_refused() -> None:
    leaves, form = flattened((torch.zeros(2, 4, 8, device=DEVICE),), {})
    rehearsal = _Rehearsal(Reads(8, 8).to(DEVICE), leaves, form)
    host_made = HostMade(rehearsal.module, rehearsal.stand_ins.values())
    with pytest.raises(NotAlone), host_made.watched():
        rehearsal.forward()
    assert torch.cuda.is_current_stream_capturing is not_captured


@pytest.mark.parametrize("make", [lambda: CountsUnlessCaptured(8, 8), WritesUnlessCaptured], ids=["counts", "writes"])
def test_what_a_capture_would_not_do_is_refused(make: Callable[[], nn.Module]) -> None:
    with pytest.raises(NotAlone):
        warmed_up(make())


@pytest.mark.parametrize("make", [lambda: MakesItsOwn(8, 8), lambda: SetsItselfUp(8, 8)], ids=["makes", "sets up"])
def test_a_first_call_that_leaves_something_behind_is_no_rehearsal(make: Callable[[], nn.Module]) -> None:
    with pytest.raises(NotAlone):
        warmed_up(make(), called_before=False)
