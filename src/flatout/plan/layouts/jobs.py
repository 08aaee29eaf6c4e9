"""Counts a job's shape: its own model, loss and batches."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn

from flatout.base.errors import FlatoutError, ModelError
from flatout.base.tree import Doc
from flatout.engine.job import Job
from flatout.engine.settings import Settings
from flatout.models.gpt import GPT
from flatout.plan.layouts.count import count_model
from flatout.plan.layouts.explain import explain_layouts
from flatout.plan.layouts.fitting import state_bytes
from flatout.plan.layouts.shape import Shape


def explain_job_layouts(
    job: Job,
    *,
    devices: int,
    device_kind: str,
    name: str = "model",
    inside: str | None = None,
    between: str | None = None,
    per_node: int | None = None,
    settings: Settings | None = None,
    splits: Mapping[str, int] | None = None,
) -> Doc:
    """The screen of `flatout explain --devices N --device-kind KIND`. `splits`: sizes that a custom tensor plan divides."""
    asked = settings or Settings()
    return explain_layouts(
        shape_of_job(job, name=name, splits=splits),
        batch=job.data.typical_batch(job.batch)[0],
        devices=devices,
        device_kind=device_kind,
        inside=inside,
        between=between,
        per_node=per_node,
        compiled=asked.compile != "off",
        optimizer_bytes=state_bytes(job),
    )


def shape_of_job(job: Job, *, name: str = "model", splits: Mapping[str, int] | None = None) -> Shape:
    """In bf16, which devices of these kinds compute with."""
    _, columns = job.data.typical_batch(job.batch)
    try:
        return count_model(
            job.model,
            job.objective,
            {key: (tuple(column.shape), column.dtype) for key, column in columns.items()},
            name=name,
            dtype=torch.bfloat16,
            unit=job.unit,
            per_sample=job.data.train.tokens_per_row if job.unit == "tokens" else 1.0,
            splits=splits or splits_of(job.model),
        )
    except FlatoutError:
        raise
    except Exception as error:
        why = str(error).strip().partition("\n")[0]
        raise ModelError(
            f"layouts are counted on tensors without data, but {type(job.model).__name__} can't run on them: "
            f"{type(error).__name__}: {why}. Its forward must not depend on tensor values"
        ) from error


def splits_of(model: nn.Module) -> Mapping[str, int] | None:
    """Sizes that tensor parallelism divides in a built-in model; None for others, which need a tensor plan."""
    if not isinstance(model, GPT):
        return None
    block = model.blocks[0]
    return {"attention heads": int(block.attention.heads), "hidden units": int(block.expand.out_features)}  # type: ignore[union-attr, arg-type]
