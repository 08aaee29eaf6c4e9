"""torch's own convolutions: the same numbers, offered where they are faster, and switched back."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from flatout.boost.remedies.own_convolutions import OwnConvolutions
from flatout.doctor import kinds
from flatout.doctor.account import PYTHON, ROWS, Account
from flatout.doctor.case import Case
from flatout.doctor.diagnosis import Diagnosis
from flatout.doctor.findings import channels_first, slow_convolutions
from flatout.doctor.seen import Calls, ScriptRecord
from flatout.doctor.trace import Trace
from flatout.machine.comparisons import in_channels_last, torchs_own
from flatout.machine.convolutions import own_convolutions
from flatout.machine.gains import Gains
from flatout.measure.counts import Call, count_step


def case_of(convolutions_ms: float, factor: float | None, device: str = "cpu", channels_last: bool = False) -> Case:
    """`factor`: as it was measured for these convolutions in that layout; None: it was not."""
    operations = count_step(lambda: F.conv2d(torch.empty(8, 3, 9, 9), torch.empty(4, 3, 3, 3))).operations
    compared = torchs_own(torch.device("cpu"), operations, in_channels_last if channels_last else _as_it_is)
    assert compared is not None
    rows = {**dict.fromkeys(ROWS, 0.0), kinds.CONVOLUTION: convolutions_ms, PYTHON: 10.0 - convolutions_ms}
    call = Calls("Net", "train.py:3", True, True, "", "float32", device, True, channels_last, False, batch=8)
    gains = Gains({} if factor is None else {compared.key: factor})
    return Case(ScriptRecord(device, calls=[call]), Trace(0, 1, 1, [], operations=operations), Account(1, 1), rows, gains=gains)


def _as_it_is(call: Call) -> Call:
    return call


def test_they_give_the_same_numbers_and_are_switched_back() -> None:
    x = torch.randn(4, 3, 12, 12, requires_grad=True)
    weight = torch.randn(8, 3, 3, 3, requires_grad=True)
    onednn, plain = torch.backends.mkldnn.enabled, F.conv2d(x, weight)
    with own_convolutions():
        assert not torch.backends.mkldnn.enabled
        own = F.conv2d(x, weight)
    assert torch.backends.mkldnn.enabled == onednn
    torch.testing.assert_close(own, plain, rtol=1e-4, atol=1e-4)
    for a, b in zip(torch.autograd.grad(own.sum(), (x, weight)), torch.autograd.grad(plain.sum(), (x, weight)), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("factor", "convolutions_ms", "device", "gain"),
    [
        (2.0, 8.0, "cpu", 10 / 6),
        (1.05, 8.0, "cpu", None),
        (2.0, 0.5, "cpu", None),
        (2.0, 8.0, "cuda", None),
        (None, 8.0, "cpu", None),
    ],
)
@pytest.mark.parametrize("channels_last", [False, True])
def test_they_are_offered_where_they_are_faster_and_there_is_something_to_gain(
    monkeypatch: pytest.MonkeyPatch,
    factor: float | None,
    convolutions_ms: float,
    device: str,
    gain: float | None,
    channels_last: bool,
) -> None:
    monkeypatch.setattr(torch.backends.mkldnn, "enabled", True)
    case = case_of(convolutions_ms, factor, device, channels_last)
    offers = OwnConvolutions().offers(Diagnosis(case, tuple(slow_convolutions.look(case))))
    assert [offer.predicted for offer in offers] == ([] if gain is None else [pytest.approx(gain)])


def test_the_layout_is_no_fault_where_torchs_own_are_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.mkldnn, "enabled", True)
    assert [one.id for one in channels_first.look(case_of(8.0, 1.0))] == ["channels_first"]
    assert list(channels_first.look(case_of(8.0, 1.6))) == []
    monkeypatch.setattr(torch.backends.mkldnn, "enabled", False)
    assert list(channels_first.look(case_of(8.0, 1.6))) == [] and list(slow_convolutions.look(case_of(8.0, 1.6))) == []
