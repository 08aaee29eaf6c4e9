"""A call is rehearsed the way that it is captured: whoever asks whether it is, is told so, and nobody reads a mask."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn.modules import transformer

from flatout.boost.remedies.call_form import flattened
from flatout.boost.remedies.graph_capture import _Rehearsal
from flatout.boost.remedies.host_made import HostMade, NotAlone

DEVICE = "meta"  # any that is not the host
ASKED = torch.cuda.is_current_stream_capturing


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
        if not torch.cuda.is_current_stream_capturing() and (x == 0).all():
            return x
        return super().forward(x)


class Reads(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return x if (x == 0).all() else super().forward(x)


class MakesItsOwn(nn.Linear):
    kept: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        if self.kept is None:
            self.kept = torch.arange(8.0).to(x.device)
        return super().forward(x + self.kept) * torch.tensor([2.0], device=x.device)


def rehearsed(model: nn.Module) -> HostMade:
    leaves, form = flattened((torch.zeros(2, 4, 8, device=DEVICE),), {})
    rehearsal = _Rehearsal(model.to(DEVICE).train(), leaves, form)
    host_made = HostMade(model, rehearsal.stand_ins.values())
    for _ in range(3):
        with host_made.watched():
            rehearsal.forward()
    return host_made


@pytest.mark.parametrize("make", [Masked, lambda: Asks(8, 8), lambda: MakesItsOwn(8, 8)])
def test_a_call_is_rehearsed(make: type[nn.Module]) -> None:
    assert rehearsed(make()).is_settled()
    assert torch.cuda.is_current_stream_capturing is ASKED
    assert transformer._detect_is_causal_mask(torch.tensor([[0.0, float("-inf")], [0.0, 0.0]]))


def test_a_model_that_reads_a_value_all_the_same_is_refused() -> None:
    with pytest.raises(NotAlone):
        rehearsed(Reads(8, 8))
    assert torch.cuda.is_current_stream_capturing is ASKED
