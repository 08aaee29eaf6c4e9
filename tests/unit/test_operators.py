"""Operators timed on random values of the same layout: which are timed, which are skipped, and that no state changes."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from flatout.machine import operators
from flatout.machine.ceilings import Ceilings, MeasuredRate
from flatout.machine.onednn import onednn_kept
from flatout.machine.operators import with_operators
from flatout.measure.counts import Call, Operation, count_step

CPU = torch.device("cpu")
RATE = MeasuredRate(1e11, 1e11, 1e11, 5)
BARE = Ceilings("cpu", {"fp32": RATE}, copy_bytes_per_s=RATE)


def timed(operations: Any, limit_s: float = 60.0, ceilings: Ceilings = BARE) -> dict[str, float | None]:
    return dict(with_operators(ceilings, CPU, operations, limit_s).operators)


def seconds_of(found: dict[str, float | None], one: Operation) -> float | None:
    return found[one.key]


def step_of_everything() -> None:
    """Products, convolutions, attention, norms, pooling, indices, a loss, forward and backward; an update."""
    torch.manual_seed(0)
    words = nn.Embedding(50, 16)
    conv, norm, head = nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.Linear(16, 5)
    blocks = nn.TransformerEncoderLayer(16, 2, 32, 0.1, batch_first=True)
    images = F.max_pool2d(norm(conv(torch.randn(4, 3, 12, 12))).relu(), 2).mean((2, 3))
    places = blocks(words(torch.randint(0, 50, (4, 7)))).mean(1)
    F.cross_entropy(head(images + places), torch.randint(0, 5, (4,))).backward()
    parameters = [p for part in (words, conv, norm, head, blocks) for p in part.parameters()]
    nn.utils.clip_grad_norm_(parameters, 1.0, foreach=True)
    torch.optim.AdamW(parameters, fused=True).step()


def test_every_operator_of_a_step_is_timed_and_each_once(monkeypatch: pytest.MonkeyPatch) -> None:
    operations = count_step(step_of_everything).operations
    asked: list[str] = []
    seconds = operators._seconds
    monkeypatch.setattr(operators, "_seconds", lambda call, *given: asked.append(call.key) or seconds(call, *given))  # type: ignore[func-returns-value]
    found = timed((*operations, *operations))
    missing = {one.name for one in operations if seconds_of(found, one) is None}
    assert not missing and all(value and 0 < value < 1 for value in found.values())
    assert len(asked) == len(set(asked)) == len(found) < len(operations)
    with_more = with_operators(with_operators(BARE, CPU, operations, 60.0), CPU, operations, 60.0)
    assert len(asked) == 2 * len(found) and len(with_more.operators) == len(found)  # nothing is timed twice


def test_more_work_takes_longer() -> None:
    small, large = (count_step(lambda n=n: torch.ones(n, n) @ torch.ones(n, n)).operations[-1] for n in (8, 512))
    found = timed((small, large))
    assert (seconds_of(found, large) or 0) > 5 * (seconds_of(found, small) or math.inf)


def test_timing_leaves_no_state_behind() -> None:
    operations = count_step(step_of_everything).operations
    state, switched = torch.random.get_rng_state(), torch.is_grad_enabled()
    timed(operations)
    assert torch.equal(state, torch.random.get_rng_state()) and torch.is_grad_enabled() is switched


def test_an_index_never_points_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    """An index out of range would make the device unusable in this process."""

    def both_ways() -> None:
        table = torch.randn(3, 400, requires_grad=True)
        F.embedding(torch.randint(0, 3, (64, 32)), table).sum().backward()
        torch.randn(90, 4).gather(1, torch.zeros(90, 2, dtype=torch.int64))

    highest: list[int] = []
    filled = operators._filled

    def watched(layout: Any, device: Any, below: int, numbers: Any) -> torch.Tensor:
        made = filled(layout, device, below, numbers)
        if made.dtype == torch.int64:
            highest.append(int(made.max()))
        return made

    monkeypatch.setattr(operators, "_filled", watched)
    operations = [one for one in count_step(both_ways).operations if "embedding" in one.name or "gather" in one.name]
    found = timed(operations)
    assert len(operations) == 3 and None not in found.values()
    assert highest and max(highest) < 3  # rows of the table, forward and back


def test_operators_with_integers_that_are_not_indices_are_skipped() -> None:
    """Sequence offsets, or a seed in host memory: random integers would be invalid."""
    (bag,) = count_step(
        lambda: F.embedding_bag(torch.zeros(6, dtype=torch.int64), torch.randn(4, 8), torch.tensor([0, 2, 6]))
    ).operations[-1:]
    assert "bag" in bag.name and seconds_of(timed([bag]), bag) is None


@pytest.mark.parametrize(
    "step",
    [
        lambda: torch.randn(4, 8).masked_scatter(torch.ones(4, 8, dtype=torch.bool), torch.randn(32)),
        lambda: torch._assert_async(torch.tensor(True)),
        lambda: torch.linalg.eigh(torch.eye(4)),
    ],
    ids=["mask", "assertion", "solver"],
)
def test_operators_that_random_masks_or_graphs_would_break_are_skipped(step: Any) -> None:
    one = count_step(step).operations[-1]
    assert seconds_of(timed([one]), one) is None


def test_random_generators_of_the_user_are_not_advanced() -> None:
    numbers = torch.Generator().manual_seed(7)
    operations = count_step(lambda: torch.empty(16).normal_(generator=numbers)).operations
    before = numbers.get_state()
    found = timed(operations)
    assert torch.equal(numbers.get_state(), before) and None not in found.values()
    again = count_step(lambda: torch.empty(16).normal_(generator=torch.Generator())).operations
    assert {one.key for one in again} == set(found)  # memory addresses are not part of the key


def test_operators_that_depend_on_values_are_skipped() -> None:
    looks = count_step(lambda: torch.ones(4).nonzero()).operations
    assert [seconds_of(timed(looks), one) for one in looks if "nonzero" in one.name] == [None]
    own = torch.library.custom_op("test_operators::own", lambda x: x.clone(), mutates_args=(), schema="(Tensor x) -> Tensor")
    foreign = [one for one in count_step(lambda: own(torch.ones(4))).operations if "own" in one.name]
    assert foreign and seconds_of(timed(foreign), foreign[0]) is None


def test_failed_or_too_large_operators_are_none_and_not_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    (relu,) = count_step(torch.ones(8).relu).operations
    calls: list[Call] = []

    def fails(call: Call, *given: Any) -> float:
        calls.append(call)
        raise RuntimeError("not here")

    monkeypatch.setattr(operators, "_seconds", fails)
    known = with_operators(BARE, CPU, [relu], 60.0)
    assert seconds_of(dict(known.operators), relu) is None
    assert with_operators(known, CPU, [relu], 60.0) is known and len(calls) == 1
    slow = Ceilings("cpu", {"fp32": RATE}, copy_bytes_per_s=MeasuredRate(1.0, 1.0, 1.0, 5))  # 64 bytes take a minute
    assert seconds_of(timed([relu], ceilings=slow), relu) is None and len(calls) == 1


def test_operators_that_lacked_memory_are_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """For a lookup of a few rows, the whole table is allocated."""
    table, rows = torch.randn(1000, 8), torch.zeros(2, dtype=torch.int64)
    (pick,) = count_step(lambda: F.embedding(rows, table)).operations
    assert pick.bytes < 200 and pick.call is not None
    with monkeypatch.context() as patch:
        patch.setattr(operators, "_free_bytes", lambda device: 4 * 32_000)
        short = with_operators(BARE, CPU, [pick], 60.0)
        assert short is BARE
    assert seconds_of(dict(with_operators(short, CPU, [pick], 60.0).operators), pick)

    def fails(*given: Any) -> float:
        raise torch.OutOfMemoryError("none left")

    monkeypatch.setattr(operators, "_seconds", fails)
    assert with_operators(BARE, CPU, [pick], 60.0) is BARE


def test_a_slow_operator_is_called_once(monkeypatch: pytest.MonkeyPatch) -> None:
    (relu,) = count_step(torch.ones(8).relu).operations
    called: list[float] = []

    def slow(*given: Any, **named: Any) -> None:
        called.append(1.0)
        time.sleep(0.15)

    assert relu.call is not None
    monkeypatch.setattr(operators, "_is_safe", lambda call: True)
    monkeypatch.setattr(operators, "_is_attention_backward", lambda call: False)
    found = timed([replace(relu, call=replace(relu.call, func=slow))])
    assert len(called) == 1 and (seconds_of(found, relu) or 0) > 0.1


def test_timing_stops_at_the_time_limit() -> None:
    operations = count_step(step_of_everything).operations
    assert timed(operations, limit_s=-1.0) == {}


def test_calls_with_the_same_work_have_the_same_key() -> None:
    def key(size: int, dtype: torch.dtype) -> str:
        (one,) = count_step(torch.ones(size, dtype=dtype).relu).operations
        return one.key

    assert key(8, torch.float32) == key(8, torch.float32)
    assert len({key(8, torch.float32), key(9, torch.float32), key(8, torch.bfloat16)}) == 3


def test_a_format_without_instructions_prints_nothing_and_turns_nothing_off(
    capfd: pytest.CaptureFixture[str],
) -> None:
    def product() -> None:
        x = torch.ones(64, 96, dtype=torch.bfloat16)
        torch.addmm(x[0, :64], x, x.T)

    with onednn_kept(torch.bfloat16):
        operations = count_step(product).operations
    assert timed(operations)[operations[-1].key]
    assert capfd.readouterr().err == "" and torch.backends.mkldnn.is_available() == torch._C._get_mkldnn_enabled()
