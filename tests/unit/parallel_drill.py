"""Bare training loops, on one process and on many: the same models, batches and optimizers, so that only the layout differs."""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Iterable
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from gloo import on_ranks
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import loss_parallel

from flatout.engine.parallel.norms import clip_, scale_
from flatout.engine.parallel.pipeline import Pipeline
from flatout.engine.parallel.spread import spread
from flatout.engine.parallel.sums import sum_gradients_
from flatout.engine.parallel.tensor import split_tensors
from flatout.engine.settings import Settings
from flatout.models.gpt import GPT
from flatout.models.mlp import MLP
from flatout.objectives.classify import Classify
from flatout.objectives.inputs import Inputs
from flatout.objectives.next_token import NextToken
from flatout.objectives.objective import Objective

ROWS, LIMIT = 8, 0.5
Batch = dict[str, Tensor]
Result = dict[str, Any]

_PACKED = Inputs(("x", "documents", "positions"), ("x", "documents", "positions"))
OBJECTIVES: dict[str, Objective] = {"packed": NextToken(_PACKED), "categories": Classify(Inputs(("x", "categories")))}


def objective_of(kind: str) -> Objective:
    return OBJECTIVES.get(kind) or (NextToken() if kind.startswith("gpt") else Classify())


def model_of(kind: str, dtype: torch.dtype) -> nn.Module:
    torch.manual_seed(1)
    makers: dict[str, Any] = {
        "gpt": lambda: GPT(13, 6, 2, 4, 16, 0.0, True, False),
        "gpt-deep": lambda: GPT(13, 6, 4, 2, 8, 0.0, True, False),
        "gpt-untied": lambda: GPT(13, 6, 2, 4, 16, 0.0, False, True),
        "packed": lambda: GPT(13, 6, 2, 4, 16, 0.0, True, True),
        "mlp": lambda: MLP((6,), 5, (12, 8), "gelu", 0.0, False, ()),
        "mlp-odd": lambda: MLP((6,), 5, (12,), "tanh", 0.0, False, ()),
        "mlp-norm": lambda: MLP((6,), 5, (12, 8), "relu", 0.0, True, ()),
        "categories": lambda: MLP((6,), 5, (12, 8, 8), "silu", 0.0, False, (3, 7)),
        "chain": lambda: nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 8), nn.Tanh(), nn.Linear(8, 5)),
    }
    model: nn.Module = makers[kind]().to(dtype)
    return model


def batch_of(kind: str, step: int, steps: int, dtype: torch.dtype) -> Batch:
    """Rows weigh differently where they have tokens, and the last batch has a single one."""
    draw = torch.Generator().manual_seed(step)
    if kind.startswith("gpt") or kind == "packed":
        tokens = torch.randint(0, 13, (ROWS, 7), generator=draw)
        batch = {"x": tokens[:, :-1], "y": tokens[:, 1:].clone()}
        batch["y"][torch.rand((ROWS, 6), generator=draw) < torch.linspace(0.0, 0.8, ROWS)[:, None]] = -100
        if kind == "packed":
            batch["documents"] = torch.tensor([0, 0, 1, 1, 1, 2]).expand(ROWS, -1)
            batch["positions"] = torch.tensor([0, 1, 0, 1, 2, 0]).expand(ROWS, -1)
    else:
        batch = {"x": torch.randn((ROWS, 6), generator=draw).to(dtype), "y": torch.randint(0, 5, (ROWS,), generator=draw)}
        if kind == "categories":
            batch["categories"] = torch.stack([torch.randint(0, n, (ROWS,), generator=draw) for n in (3, 7)], 1)
    return {name: column[:1] for name, column in batch.items()} if step == steps - 1 else batch


def optimizer_of(parameters: Iterable[Tensor], dtype: torch.dtype) -> torch.optim.Optimizer:
    if dtype == torch.float64:
        return torch.optim.AdamW(parameters, lr=1e-2, weight_decay=0.1)
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9)


def alone(kind: str, steps: int, dtype: torch.dtype) -> Result:
    model, objective = model_of(kind, dtype), objective_of(kind)
    optimizer = optimizer_of(model.parameters(), dtype)
    result: Result = {"loss": [], "norm": []}
    for step in range(steps):
        loss_sum, weight = objective(model, batch_of(kind, step, steps, dtype))
        (loss_sum / weight).backward()
        result["norm"].append(float(nn.utils.clip_grad_norm_(model.parameters(), LIMIT)))
        optimizer.step()
        optimizer.zero_grad()
        result["loss"].append(float(loss_sum.detach() / weight))
    return result | {"weights": dict(model.state_dict())}


def in_tensors(kind: str, axes: dict[str, int], steps: int, dtype: torch.dtype, **options: Any) -> Result:
    """Data or shard beside tensor: rows are dealt out along the first, and the tensor ranks get the same ones."""
    mesh = init_device_mesh("cpu", tuple(axes.values()), mesh_dim_names=tuple(axes))
    model, objective = model_of(kind, dtype), objective_of(kind)
    split_tensors(model, mesh["tensor"], **options)
    rows = next((name for name in ("data", "shard") if name in axes), None)
    shares = axes[rows] if rows else 1
    if rows == "shard":
        for block in getattr(model, "blocks", ()):
            fully_shard(block, mesh=mesh["shard"])
        fully_shard(model, mesh=mesh["shard"])
    optimizer = optimizer_of(model.parameters(), dtype)
    result: Result = {"loss": [], "norm": []}
    for step in range(steps):
        batch = _share(batch_of(kind, step, steps, dtype), mesh.get_local_rank(rows) if rows else 0, shares)
        with loss_parallel() if options.get("split_logits") else nullcontext():
            loss_sum, weight = objective(model, batch)
            (loss_sum * shares if rows == "shard" else loss_sum).backward()  # sharding averages
        whole = loss_sum.detach()
        totals = torch.tensor([float(_whole(whole)), float(weight)], dtype=torch.float64)
        if rows:
            dist.all_reduce(totals, group=mesh.get_group(rows))
        if rows == "data":
            sum_gradients_(model.parameters(), mesh.get_group("data"), bucket_bytes=2048)
        scale_(model.parameters(), 1 / float(totals[1]))
        result["norm"].append(float(clip_(model.parameters(), LIMIT)))
        optimizer.step()
        optimizer.zero_grad()
        result["loss"].append(float(totals[0] / totals[1]))
    return result | {"weights": {name: _whole(weight) for name, weight in model.state_dict().items()}}


def in_stages(kind: str, axes: dict[str, int], steps: int, dtype: torch.dtype, **options: Any) -> Result:
    mesh = init_device_mesh("cpu", tuple(axes.values()), mesh_dim_names=tuple(axes))
    objective, model = objective_of(kind), model_of(kind, dtype)
    rows = next((axis for axis in ("data", "shard") if axis in axes), None)
    over = axes["shard"] if rows == "shard" else 1  # sharding averages
    pipeline = Pipeline(
        model, objective.loss, objective.inputs.call, mesh.get_group("pipeline"), torch.device("cpu"),
        data_group=mesh.get_group("data") if "data" in axes else None,
        edge=split_tensors(model, mesh["tensor"]) if "tensor" in axes else None,
        spread=(lambda stage: spread(stage, mesh["shard"], Settings(), reshard=False)) if rows == "shard" else None, **options,
    )  # fmt: skip
    parameters = list(pipeline.model.parameters())
    optimizer = optimizer_of(parameters, dtype)
    result: Result = {"loss": [], "norm": []}
    for step in range(steps):
        batch = batch_of(kind, step, steps, dtype)
        if rows:
            batch = _share(batch, mesh.get_local_rank(rows), axes[rows])
        totals = torch.stack(pipeline(batch, 0.25 * over))
        if rows:
            dist.all_reduce(totals, group=mesh.get_group(rows))
        scale_(parameters, 4 / float(totals[1]))
        clipped = clip_(parameters, LIMIT, pipeline=mesh.get_group("pipeline"), skip=pipeline.counted_elsewhere)
        result["norm"].append(float(clipped))
        optimizer.step()
        optimizer.zero_grad()
        result["loss"].append(float(totals[0] / totals[1]))
    output = pipeline.outputs(batch_of(kind, 0, steps, dtype))
    weights = {name: _whole(weight) for name, weight in pipeline.model.state_dict().items()}
    return result | {"weights": weights, "output": output, "tied": pipeline.tied}


@dataclass(frozen=True)
class Case:
    kind: str
    axes: dict[str, int]
    dtype: torch.dtype = torch.float64
    options: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        layout = "-".join(f"{name}{size}" for name, size in self.axes.items())
        options = [f"{name}={value}" if isinstance(value, bool | int) else str(value) for name, value in self.options.items()]
        return " ".join([self.kind, layout, str(self.dtype).removeprefix("torch."), *options])

    def run(self, steps: int) -> Result:
        return (in_stages if "pipeline" in self.axes else in_tensors)(self.kind, self.axes, steps, self.dtype, **self.options)


TWO, PIPED = {"tensor": 2}, {"pipeline": 2}
F32 = torch.float32
CASES: dict[int, list[Case]] = {
    2: [
        Case("gpt", TWO),
        Case("gpt", TWO, options={"sequence": False}),
        Case("gpt", TWO, options={"split_logits": True}),
        Case("gpt", TWO, F32),
        Case("gpt-untied", TWO),
        Case("packed", TWO),
        Case("mlp", TWO),
        Case("mlp", TWO, F32),
        Case("mlp-odd", TWO),
        Case("mlp-norm", TWO),
        Case("categories", TWO),
        Case("chain", TWO, options={"plan": {"0": "column", "2": "row"}}),
        Case("gpt", PIPED, options={"schedule": "gpipe", "micro_batches": 3}),
        Case("gpt", PIPED, options={"schedule": "1f1b"}),
        Case("gpt", PIPED, F32, {"schedule": "1f1b"}),
        Case("gpt-deep", PIPED, options={"schedule": "interleaved"}),
        Case("gpt-untied", PIPED, options={"schedule": "1f1b", "costs": [1.0, 1.0, 1.0, 9.0]}),
        Case("packed", PIPED, options={"schedule": "1f1b", "micro_batches": 2}),
        Case("mlp", PIPED, F32, {"schedule": "gpipe"}),
        Case("categories", PIPED, options={"schedule": "interleaved", "micro_batches": 2}),
        Case("chain", PIPED, options={"schedule": "1f1b", "micro_batches": 8}),
    ],
    4: [
        Case("gpt", {"tensor": 4}),
        Case("gpt", {"data": 2, "tensor": 2}),
        Case("mlp", {"data": 2, "tensor": 2}, F32),
        Case("gpt", {"shard": 2, "tensor": 2}),
        Case("gpt-deep", {"pipeline": 4}, options={"schedule": "1f1b", "micro_batches": 4}),
        Case("gpt", {"pipeline": 2, "data": 2}, options={"schedule": "1f1b", "micro_batches": 2}),
        Case("gpt", {"pipeline": 2, "shard": 2}, options={"schedule": "1f1b", "micro_batches": 2}),
        Case("gpt", {"pipeline": 2, "tensor": 2}, options={"schedule": "gpipe", "micro_batches": 3}),
        Case("gpt-deep", {"pipeline": 2, "tensor": 2}, options={"schedule": "interleaved"}),
        Case("mlp", {"pipeline": 2, "tensor": 2}, F32, {"schedule": "1f1b", "costs": [9.0, 1.0, 1.0]}),
    ],
}  # fmt: skip
STEPS = 5  # a change of a weight has reached all others by the second


@functools.cache
def results(size: int, *, piped: bool) -> list[dict[int, Result]]:
    """Of each rank, of each case with or without a pipeline by its number: all in one start of the processes."""
    with tempfile.TemporaryDirectory() as folder:
        return on_ranks(size, run_all, size, piped, STEPS, folder=Path(folder))


def run_all(size: int, piped: bool, steps: int) -> dict[int, Result]:
    return {number: case.run(steps) for number, case in enumerate(CASES[size]) if ("pipeline" in case.axes) == piped}


@functools.cache
def wanted(kind: str, dtype: torch.dtype) -> Result:
    return alone(kind, STEPS, dtype)


def worst(result: Result, wanted: Result) -> float:
    """The largest difference of a weight, against the largest number in it."""
    assert set(result["weights"]) <= set(wanted["weights"])
    pairs = [(weight, wanted["weights"][name]) for name, weight in result["weights"].items()]
    return max(float((got - right).abs().max() / right.abs().max()) for got, right in pairs)


def _share(batch: Batch, rank: int, shares: int) -> Batch:
    rows = len(batch["x"])
    return {name: column[rows * rank // shares : rows * (rank + 1) // shares] for name, column in batch.items()}


def _whole(weight: Tensor) -> Tensor:
    return weight.full_tensor() if isinstance(weight, DTensor) else weight
