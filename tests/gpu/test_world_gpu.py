"""Engines of several processes on one GPU: NCCL with a world of one learns what a plain step does."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from flatout.engine.one_process import Exchange
from flatout.engine.parallel.exchange import Replicas, Shards
from flatout.engine.parallel.shared_gradients import SharedGradients
from flatout.engine.settings import Settings
from flatout.engine.step import Step
from flatout.models.gpt import gpt
from flatout.objectives.build import build as build_objective
from flatout.world.world import ProcessWorld

DEVICE = torch.device("cuda", 0)
SETTINGS = Settings(device="cuda:0", deterministic=False)


@pytest.fixture(scope="module")
def world() -> Iterator[ProcessWorld]:
    torch_: Any = dist
    store = torch_.HashStore()
    dist.init_process_group("cpu:gloo,cuda:nccl", store=store, rank=0, world_size=1, device_id=DEVICE)
    made = ProcessWorld(DEVICE, 0, 1, store, ours=True)
    try:
        yield made
    finally:
        made.close()


def model() -> nn.Module:
    torch.manual_seed(0)
    return gpt(64, 16, layers=2, heads=2, width=32).to(DEVICE)


def trained(world: ProcessWorld, exchange: Any) -> dict[str, Tensor]:
    objective = build_objective("next_token", ["x"])
    made = model()
    engine = exchange(made, objective)
    optimizer = torch.optim.AdamW([{"params": list(made.parameters()), "factor": 1.0}], lr=1e-3, fused=True)
    shared = partial(SharedGradients, exchange=engine, world=world)
    step = Step(made, objective, optimizer, SETTINGS, clip=1.0, exchange=engine, gradients=shared)
    draw = torch.Generator().manual_seed(1)
    for _ in range(5):
        x = torch.randint(0, 64, (8, 16), generator=draw).to(DEVICE)
        step.update.set_rate(1e-3)
        step({"x": x, "y": x.roll(-1, 1)}, 8)
    return {name: getattr(value, "full_tensor", lambda value=value: value)().cpu() for name, value in made.state_dict().items()}


def test_what_processes_tell_each_other(world: ProcessWorld) -> None:
    assert world.gather({"a": 1}) == [{"a": 1}] and world.from_first([2]) == [2] and not world.any(False)
    values = torch.arange(3.0, device=DEVICE)
    dist.all_reduce(values)
    assert values.tolist() == [0.0, 1.0, 2.0]


@pytest.mark.parametrize("how", ["replicas", "shards"])
def test_an_engine_learns_what_a_plain_step_does(world: ProcessWorld, how: str) -> None:
    from torch.distributed.device_mesh import init_device_mesh

    mesh = init_device_mesh("cuda", (1,), mesh_dim_names=("shard",))
    engines: dict[str, Any] = {
        "replicas": lambda made, loss: Replicas(made, loss, SETTINGS, world),
        "shards": lambda made, loss: Shards(made, loss, SETTINGS, world, mesh["shard"]),
    }
    plain, there = trained(world, Exchange), trained(world, engines[how])
    for name, weights in plain.items():
        assert torch.allclose(weights, there[name], rtol=1e-4, atol=1e-6), name
