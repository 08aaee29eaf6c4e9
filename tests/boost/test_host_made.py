"""What a forward makes on the host becomes part of a graph only where every call makes the same of nothing that lasts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from flatout.boost.remedies.host_made import HostMade, NotAlone

DEVICE = "meta"  # any that is not the host


@torch.library.custom_op("flatout_test::to_the_host", mutates_args=())
def to_the_host(x: Tensor) -> Tensor:
    return torch.ones(x.shape)


to_the_host.register_fake(lambda x: torch.ones(x.shape))


def watched_thrice(call: Callable[[], Any]) -> HostMade:
    made = HostMade(scaled)
    for captured in (False, False, True):
        with made.watched(captured):
            call()
    return made


@pytest.mark.parametrize(
    "call",
    [
        lambda: torch.ones(4, 4).triu(1).to(DEVICE),
        lambda: torch.tensor([1.0, 2.0], device=DEVICE),
        lambda: torch.empty(1, device=DEVICE).new_tensor([1.0, 2.0]),
        lambda: torch.empty(3, device=DEVICE).copy_(torch.arange(3.0)),
    ],
)
def test_what_is_the_same_each_time_is_kept_on_the_device(call: Callable[[], Any]) -> None:
    (place,) = watched_thrice(call).places()
    assert place.device.type == DEVICE


def test_a_number_that_goes_into_a_kernel_needs_no_place() -> None:
    assert watched_thrice(lambda: torch.ones(3, device=DEVICE) * torch.tensor(2.0)).places() == []


def counting() -> Iterator[float]:
    number = 0.0
    while True:
        number += 1.0
        yield number


kept, lent, count = torch.ones(3), np.ones(3), counting()


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scales = [1.0, 2.0]


scaled = Scaled()


def caught() -> None:
    with suppress(Exception):
        kept.to(DEVICE)


@pytest.mark.parametrize(
    "call",
    [
        lambda: kept.to(DEVICE),
        lambda: (torch.zeros(3) + kept).to(DEVICE),
        lambda: kept.add_(1.0).to(DEVICE),
        lambda: torch.from_numpy(lent).to(DEVICE),
        lambda: torch.ones((), device=DEVICE) * kept[0],
        lambda: torch.tensor([kept[0], kept[1]], device=DEVICE),
        lambda: torch.tensor(scaled.scales, device=DEVICE),
        lambda: torch.ones(3, device=DEVICE) * kept.tolist()[0],
        lambda: torch.ones(3, device=DEVICE) * kept.numpy()[0],
        lambda: torch.ones(3).copy_(to_the_host(torch.ones(3, device=DEVICE))).to(DEVICE),
        caught,
        lambda: torch.tensor(next(count)).to(DEVICE),
        lambda: torch.ones((), device=DEVICE) * torch.tensor(next(count)),
    ],
)
def test_what_may_be_another_the_next_time_is_not(call: Callable[[], Any]) -> None:
    with pytest.raises(NotAlone):
        watched_thrice(call)


def test_the_model_may_write_to_what_it_got() -> None:
    got: list[Tensor] = []
    (place,) = watched_thrice(lambda: got.append(torch.ones(3).to(DEVICE))).places()
    assert got[-1].untyped_storage()._cdata != place.untyped_storage()._cdata


def test_what_is_read_on_the_device_and_was_there_before_is_known() -> None:
    before, batch = torch.ones(3, device=DEVICE), torch.ones(3, device=DEVICE)
    made = watched_thrice(lambda: (batch * before[:2].sum()).add_(torch.ones(3).to(DEVICE)))
    assert sorted(one.untyped_storage()._cdata for one in made.outside.values()) == sorted(
        one.untyped_storage()._cdata for one in (before, batch)
    )


@pytest.mark.parametrize("how", ["module.compile", "torch.compile", "a function"])
def test_compiled_code_is_looked_at_as_it_was_written_and_stays_compiled(how: str) -> None:
    runs = []

    def backend(graph: Any, inputs: Any) -> Any:
        return lambda *args: runs.append(1) or graph(*args)

    class Own(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return compute(x)

    def plain(x: Tensor) -> Tensor:
        return x * kept[0]

    compute = torch.compile(plain, backend=backend) if how == "a function" else plain
    model: Any = Own()
    if how == "module.compile":
        model.compile(backend=backend)
    elif how == "torch.compile":
        model = torch.compile(model, backend=backend)
    with pytest.raises(NotAlone), HostMade(model).watched():
        model(torch.ones(2, device=DEVICE))
    assert runs == []
    model(torch.ones(2))
    assert runs
