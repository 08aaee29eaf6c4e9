"""Knobs that trade time for memory: offered only if memory is short, on a GPU; and the allocator, restored afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch
from test_engine_kit import recipe, train
from torch import nn

import flatout as fo
from flatout.base.budget import Budget
from flatout.engine import assembly, surroundings
from flatout.engine.settings import Settings
from flatout.engine.surroundings import allocator
from flatout.machine.out_of_memory import is_out_of_memory
from flatout.plan import choose
from flatout.plan.choose import situation_of
from flatout.plan.knobs import activation_checkpointing, activation_offload, attention, optimizer_offload, precision
from flatout.plan.knobs import allocator as allocator_knob
from flatout.plan.knobs.all import conflicts
from flatout.plan.plan import Choice
from flatout.plan.situation import Situation
from flatout.recipe.build import build_job
from flatout.testing.knobs import KnobConformance, made_up

CUDA = torch.device("cuda")
ON_CUDA = Settings(device="cuda")
SHORT = replace(ON_CUDA, micro_batch=16)


class TestActivationOffload(KnobConformance):
    knob = activation_offload


class TestAllocator(KnobConformance):
    knob = allocator_knob


class TestOptimizerOffload(KnobConformance):
    knob = optimizer_offload


@pytest.fixture
def outside(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Every setting of the GPU's allocator, in order; the last one is active."""
    found = [""]
    monkeypatch.setattr(torch._C, "_accelerator_getAllocatorSettings", lambda: found[-1], raising=False)
    monkeypatch.setattr(torch._C, "_accelerator_setAllocatorSettings", found.append, raising=False)
    return found


def situation(model: Any = "mlp", data: Any = "digits") -> Situation:
    job = build_job(fo.Recipe(data=data, model=model, batch=32, lr=1e-3, budget="20000 steps"))
    return replace(situation_of(job, {"device": "cpu"}, made_up()), device=CUDA)


def values(knob: Any, s: Situation, now: Settings) -> list[Any]:
    return [candidate.value for candidate in knob.candidates(s, now)]


@pytest.mark.parametrize("knob", [activation_offload, optimizer_offload])
def test_offload_is_tried_only_where_memory_is_short(knob: Any) -> None:
    s = situation()
    assert values(knob, s, ON_CUDA) == []
    assert values(knob, s, SHORT) == [True]
    assert values(knob, s, replace(ON_CUDA, activation_checkpointing=True)) == [True]
    assert values(knob, s, replace(SHORT, graph=True)) == []
    assert values(knob, replace(s, device=torch.device("cpu")), replace(SHORT, device="cpu")) == []
    (decided,) = knob.default(s, {})
    assert (decided.value, decided.why) == (False, "not needed unless memory runs short")
    (on_a_cpu,) = knob.default(replace(s, device=torch.device("cpu")), {})
    assert on_a_cpu.value is False and on_a_cpu.why.startswith("for accelerators")


def test_recomputing_is_tried_before_offloading() -> None:
    s = situation()
    factors = [
        next(iter(knob.candidates(s, SHORT))).factor
        for knob in (activation_checkpointing, activation_offload, optimizer_offload)
    ]
    assert factors == sorted(factors, reverse=True) and len(set(factors)) == 3


def test_fp16_keeps_its_optimizer_on_the_device() -> None:
    assert values(optimizer_offload, situation(), replace(SHORT, precision="fp16")) == []


def test_segments_grow_where_batches_have_many_shapes(outside: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    s = situation()

    def decided() -> Choice:
        (choice,) = allocator_knob.default(s, {})
        assert isinstance(choice, Choice)
        return choice

    assert decided().value == "default"
    monkeypatch.setattr(type(s.job.data.train), "shapes_vary", True)
    assert decided().value == "expandable"
    outside.append("max_split_size_mb:64")
    assert decided().value == "default" and "max_split_size_mb:64" in decided().why
    outside.append("")
    assert [c.unless_slower for c in allocator_knob.candidates(s, SHORT)] == [True]
    assert values(allocator_knob, s, ON_CUDA) == [] and values(allocator_knob, s, replace(SHORT, allocator="expandable")) == []


@pytest.mark.parametrize(
    ("before", "within", "after"),
    [
        ("", "expandable_segments:True", "expandable_segments:False"),
        ("max_split_size_mb:64", "max_split_size_mb:64,expandable_segments:True", "max_split_size_mb:64"),
        ("expandable_segments:False", "expandable_segments:True", "expandable_segments:False"),
    ],
)
def test_the_allocator_is_put_back_as_it_was(outside: list[str], before: str, within: str, after: str) -> None:
    outside.append(before)
    with pytest.raises(ZeroDivisionError), allocator("expandable", CUDA):
        assert outside[-1] == within
        _ = 1 / 0
    assert outside[-1] == after


def test_by_default_and_on_a_cpu_the_allocator_is_not_touched(outside: list[str]) -> None:
    with allocator("default", CUDA), allocator("expandable", torch.device("cpu")):
        assert outside == [""]
    assert outside == [""]


def test_a_gpu_allocator_is_rejected_on_a_cpu() -> None:
    (problem,) = conflicts(Settings(device="cpu", allocator="expandable"))
    assert problem == "allocator=expandable needs a CUDA device; the run is on cpu: --off allocator"
    assert conflicts(Settings(device="cuda:0", allocator="expandable")) == []


def test_allocator_settings_are_read_from_a_snapshot_on_older_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch._C, "_accelerator_getAllocatorSettings", raising=False)
    monkeypatch.setattr(torch.cuda, "init", lambda: None)
    told = {"allocator_settings": {"PYTORCH_CUDA_ALLOC_CONF": "garbage_collection_threshold:0.8"}}
    monkeypatch.setattr(torch.cuda.memory, "_snapshot", lambda device: told)
    assert surroundings.allocator_settings(CUDA) == "garbage_collection_threshold:0.8"


def test_the_allocator_is_set_during_the_whole_run(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    happened: list[str] = []

    @contextmanager
    def noted(kind: str, device: torch.device) -> Iterator[None]:
        happened.append(kind)
        try:
            yield
        finally:
            happened.append("put back")

    def see(event: Any) -> None:
        happened.append(event["kind"])

    monkeypatch.setattr(surroundings, "allocator", noted)
    monkeypatch.setattr(choose, "conflicts", lambda settings: [])  # a CPU has no such allocator
    train(tmp_path, recipe(settings={"allocator": "expandable"}), observers=[see])
    assert happened.index("expandable") < happened.index("started") < happened.index("put back")
    assert happened.count("put back") == 1 and "step" not in happened[happened.index("put back") :]

    def fail(*given: Any, **more: Any) -> Any:
        raise ZeroDivisionError("no")

    monkeypatch.setattr(assembly, "make_step", fail)
    with pytest.raises(ZeroDivisionError, match="no"):
        train(tmp_path, recipe(seed=1))
    assert happened.count("put back") == 2


class Attends(nn.Module):
    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.flat = nn.Flatten()
        self.qkv = nn.Linear(64, 192)
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(64, 10)
        self.attend = nn.functional.scaled_dot_product_attention

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = self.qkv(self.flat(x)).unflatten(-1, (3, 2, 4, 8)).unbind(1)
        return self.head(self.dropout(self.attend(*parts)).flatten(1))


def test_the_reason_says_whether_the_model_uses_attention() -> None:
    def why(model: Any, s: Situation | None = None) -> str:
        (choice,) = attention.default(s or situation(model), {})
        assert isinstance(choice, Choice) and choice.value == "auto"
        return choice.why

    assert why(Attends) == "torch chooses the kernel"
    assert why("mlp") == "this model does not use torch's attention"
    unknown = situation_of(situation().job, {"device": "cpu"}, None)  # nothing was counted
    assert why("mlp", unknown) == "torch chooses the kernel"


def test_a_short_run_uses_an_attention_kernel_without_a_build() -> None:
    s = replace(situation(Attends), device=torch.device("cuda"))
    long = replace(s, job=replace(s.job, budget=Budget.parse("3 hours")))

    def chosen(s: Situation, precision: str) -> str:
        (choice,) = attention.default(s, {"precision": precision})
        assert isinstance(choice, Choice)
        return str(choice.value)

    assert chosen(s, "bf16") == "flash"
    assert chosen(long, "bf16") == "auto"
    assert chosen(s, "fp32") == "auto"  # which flash does not take
    assert chosen(replace(s, device=torch.device("cpu")), "bf16") == "auto"
    assert chosen(replace(situation("mlp"), device=torch.device("cuda")), "bf16") == "auto"


def test_flex_is_tried_last_and_only_compiled() -> None:
    compiled = replace(ON_CUDA, compile="on", precision="bf16")
    s = situation(Attends)
    assert "flex" not in values(attention, s, replace(compiled, compile="off"))
    found = list(attention.candidates(s, compiled))
    assert found[-1].value == "flex" and found[-1].factor == min(candidate.factor or 0 for candidate in found)
    assert "flex" not in values(attention, situation(lambda: Attends(0.1)), compiled)


def test_fp8_is_only_used_if_pinned(monkeypatch: pytest.MonkeyPatch) -> None:
    s = situation()
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    assert all(decision.value != "fp8" for decision in precision.default(s, {}) if isinstance(decision, Choice))
    for now in ("fp32", "tf32", "bf16", "fp16"):
        assert "fp8" not in values(precision, s, replace(ON_CUDA, precision=now))


def test_host_out_of_memory_errors_are_recognised() -> None:
    assert is_out_of_memory(RuntimeError("CUDA error: out of memory\nCUDA kernel errors might be"))
    assert not is_out_of_memory(RuntimeError("CUDA error: an illegal memory access was encountered"))
