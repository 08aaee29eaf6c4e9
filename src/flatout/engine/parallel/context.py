"""Context parallelism: each process has a part of every sequence. Keys and values are gathered for attention.

Positions of a sequence interact only in attention, so only that is replaced; the rest of a model works on any tokens. The model
has to offer two hooks, attributes that are called and can be replaced: `attend`, called like `F.scaled_dot_product_attention`,
and `locate`, which takes a number of tokens and a device and returns their positions in the sequence. torch's own context
parallelism has only GPU kernels and does not run on a CPU.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from flatout.base.errors import UsageError
from flatout.objectives.next_token import NextToken
from flatout.objectives.objective import Loss, LossFunction, Objective
from flatout.world.world import World

Batch = dict[str, Tensor]

_HOOKS = {
    "attend": "self.attend = F.scaled_dot_product_attention, and call that",
    "locate": "self.locate = lambda length, device: torch.arange(length, device=device), and take positions from there",
}
# Positions interact in these too, whatever hooks a model has.
_MIXING = (nn.MultiheadAttention, nn.RNNBase, nn.modules.conv._ConvNd)


def split_sequences(model: nn.Module, objective: Objective, shapes: Mapping[str, Sequence[int]], world: World) -> None:
    """Makes `model` attend across processes; raises if it can't be split. `shapes`: of one row of each column."""
    check_sequences(model, objective, shapes, world)
    group = world.mesh.get_group("context")
    for module in model.modules():
        if _offers(module, "attend"):
            module.attend = SplitAttention(world, group)  # type: ignore[assignment]
        if _offers(module, "locate"):
            module.locate = Positions(world)  # type: ignore[assignment]


def check_sequences(model: nn.Module, objective: Objective, shapes: Mapping[str, Sequence[int]], world: World) -> None:
    mesh = f"context={world.context_size}"
    instead = f"use data={world.token_size}"
    if type(objective) is not NextToken:
        raise UsageError(
            f"{mesh} splits sequences of tokens, which needs the objective next_token, and it is {objective.name}: "
            f"set objective: next_token, or {instead}"
        )
    for hook, how in _HOOKS.items():
        if not any(_offers(module, hook) for module in model.modules()):
            raise UsageError(
                f"{mesh}: no module of {type(model).__name__} has a hook `{hook}`, as those of gpt have: "
                f"set {how}, or {instead}"
            )
    for name, module in model.named_modules():
        if isinstance(module, _MIXING):
            raise UsageError(
                f"{mesh}: {name or 'the model'} is a {type(module).__name__}, which needs positions that are on other "
                f"processes: use attention with a hook `attend`, or {instead}"
            )
    columns = _columns(objective)
    for name in columns:
        if len(shapes[name]) != 1:
            shown = ", ".join(map(str, ("rows", *shapes[name])))
            raise UsageError(f"{mesh} splits columns of shape [rows, positions], {name} is [{shown}]: {instead}")
    for name in columns:
        check_length(shapes[name][0], world)


def check_length(length: int, world: World) -> None:
    step = world.length_step
    if length % step == 0:
        return
    lengths = " or ".join(str(whole) for whole in (length // step * step, (length // step + 1) * step) if whole)
    sizes = [size for size in range(2, world.context_size) if length % (2 * size) == 0]
    instead = f", or context={sizes[-1]}" if sizes else ""
    raise UsageError(
        f"context={world.context_size} cuts a sequence into {step} equal pieces, two per process, and {length} tokens can't be "
        f"divided by {step}: set a window of {lengths}{instead}"
    )


def own_stretches(objective: Objective, batch: Batch, world: World) -> Batch:
    """This process's tokens of each row, for the columns that the objective reads."""
    if world.context_size == 1:
        return batch
    found = {}
    for name in _columns(objective):
        column = batch[name]
        check_length(column.shape[1], world)
        found[name] = torch.cat([column[:, first:end] for first, end in world.stretches(column.shape[1])], 1)
    return found


def loss_of_own(loss: LossFunction, objective: Objective, world: World) -> LossFunction:
    """The loss over this process's tokens of a batch."""

    def own(model: nn.Module, batch: Batch) -> Loss:
        return loss(model, own_stretches(objective, batch, world))

    return own


class Positions:
    """The positions of this process's tokens in the sequence."""

    def __init__(self, world: World) -> None:
        self._world = world

    def __call__(self, length: int, device: torch.device) -> Tensor:
        spans = self._world.stretches(length * self._world.context_size)
        return torch.cat([torch.arange(first, end, device=device) for first, end in spans])


class SplitAttention:
    """Attention from this process's positions to those of all processes, called like torch's function."""

    def __init__(self, world: World, group: Any) -> None:
        self._world, self._group, self._gather = world, group, _gathering()

    def __call__(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        **how: Any,
    ) -> Tensor:
        size, own = self._world.context_size, query.shape[-2]
        if attn_mask is not None:
            raise UsageError(
                f"context={size}: the model uses its own attention mask, for example for several texts packed into a row; the "
                f"mask lacks the positions of other processes. Use one text per row, or data={self._world.token_size}"
            )
        if key.shape[-2] != own:
            raise UsageError(f"context={size} splits self-attention only, got {own} queries and {key.shape[-2]} keys")
        keys, values = self._of_all(torch.cat([key, value], -1)).split([key.shape[-1], value.shape[-1]], -1)
        if not is_causal:
            return F.scaled_dot_product_attention(query, keys, values, dropout_p=dropout_p, **how)
        mixed, done = [], 0
        for first, end in self._world.stretches(own * size):
            here = query[..., done : done + end - first, :]
            mixed.append(attend_to_past(here, keys[..., :end, :], values[..., :end, :], dropout_p=dropout_p, **how))
            done += end - first
        return torch.cat(mixed, -2)

    def _of_all(self, own: Tensor) -> Tensor:
        """In the order of the sequence: the first stretches of all processes, then the second ones in reverse order."""
        gathered = self._gather(own[None], 0, self._group)
        fronts, backs = gathered.chunk(2, -2)
        return torch.cat([*fronts.unbind(0), *reversed(backs.unbind(0))], -2)


def attend_to_past(query: Tensor, key: Tensor, value: Tensor, **how: Any) -> Tensor:
    """Causal attention, with the last query at the position of the last key."""
    queries, keys = query.shape[-2], key.shape[-2]
    if query.is_cuda:  # its kernels need no mask, which would be as large as the scores
        from torch.nn.attention.bias import causal_lower_right

        mask: Any = causal_lower_right(queries, keys)
    else:
        mask = torch.ones(queries, keys, dtype=torch.bool, device=query.device).tril(keys - queries)
    return F.scaled_dot_product_attention(query, key, value, attn_mask=mask, **how)


def _gathering() -> Callable[..., Tensor]:
    """torch's all-gather with a reduce-scatter as its backward; its name depends on the version."""
    from torch.distributed import _functional_collectives as collectives

    new: Callable[..., Tensor] | None = getattr(collectives, "all_gather_single_autograd", None)
    return collectives.all_gather_tensor_autograd if new is None else new  # the old one before torch 2.13


def _offers(module: nn.Module, hook: str) -> bool:
    return callable(getattr(module, hook, None))


def _columns(objective: Objective) -> list[str]:
    return list(dict.fromkeys((*objective.inputs.columns, "y")))
