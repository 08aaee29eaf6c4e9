"""The norm of all gradients: split over several meshes, whole, or on other stages of a pipeline."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from flatout.store.tensors import local_part

Parts = tuple[Any, tuple[int, ...]]  # the mesh and its axes over which the parts of a tensor are summed


@torch.no_grad()
def global_norm(parameters: Iterable[Tensor], *, pipeline: Any = None, skip: Collection[Tensor] = ()) -> Tensor:
    """The same on all processes. `pipeline`: the group of the stages; `skip`: tied weights that another stage counts."""
    parameters, passed = list(parameters), {id(parameter) for parameter in skip}
    gradients = [p.grad for p in parameters if p.grad is not None and id(p) not in passed]
    squares: dict[Parts, Tensor] = {}
    for parts, local in _by_parts(gradients).items():
        norms = torch.stack(torch._foreach_norm(local))
        squares[parts] = norms.square().sum()
    first = parameters[0]
    dtype = max((one.dtype for one in gradients), key=lambda dtype: dtype.itemsize, default=first.dtype)
    total = torch.zeros((), device=first.device, dtype=dtype)
    for (mesh, axes), square in squares.items():
        for axis in axes:
            assert mesh is not None
            dist.all_reduce(square, group=mesh.get_group(axis))
        total += square
    if pipeline is not None:
        total = total.double()  # stages may compute in different formats
        dist.all_reduce(total, group=pipeline)
        total = total.to(dtype)
    return total.sqrt()


@torch.no_grad()
def clip_(parameters: Iterable[Tensor], limit: float, *, pipeline: Any = None, skip: Collection[Tensor] = ()) -> Tensor:
    """Scale all gradients so that their norm is at most `limit`, as torch does; returns the norm before."""
    parameters = list(parameters)
    norm = global_norm(parameters, pipeline=pipeline, skip=skip)
    scale_(parameters, torch.clamp(limit / (norm + 1e-6), max=1.0))
    return norm


@torch.no_grad()
def scale_(parameters: Iterable[Tensor], factor: Tensor | float) -> None:
    gradients = [local_part(p.grad) for p in parameters if p.grad is not None]
    if gradients:
        torch._foreach_mul_(gradients, factor)


def _by_parts(gradients: list[Any]) -> dict[Parts, list[Tensor]]:
    found: dict[Parts, list[Tensor]] = {}
    for gradient in gradients:
        if not hasattr(gradient, "placements"):
            found.setdefault((None, ()), []).append(gradient)
            continue
        if any(placement.is_partial() for placement in gradient.placements):
            raise ValueError("the parts of a gradient are not summed yet, so it has no norm: redistribute it first")
        split = tuple(axis for axis, placement in enumerate(gradient.placements) if not placement.is_replicate())
        found.setdefault((gradient.device_mesh, split), []).append(gradient.to_local())
    return found
