"""Long sequences, each process a part of them: keys and values are gathered, and a process attends from its own positions.

Positions of a sequence meet in its attention alone, so that is what is replaced; everything else of a model works on whatever
tokens it is given. A model lends a hand with two attributes that are called, and can be replaced: `attend`, as
`F.scaled_dot_product_attention` is called, and `locate`, which is given a number of tokens and a device and says at which
positions of the sequence they stand. Torch's own context parallel has kernels of GPUs alone: nothing of it runs on a CPU.
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
# Positions meet in these, whatever a model offers besides.
_MIXING = (nn.MultiheadAttention, nn.RNNBase, nn.modules.conv._ConvNd)


def split_sequences(model: nn.Module, objective: Objective, shapes: Mapping[str, Sequence[int]], world: World) -> None:
    """`model` attends across the processes from now on. `shapes`: of a row of each column. What can't be split is refused."""
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
            f"{mesh} splits sequences of tokens, whose losses add up, and the objective is {objective.name}: "
            f"set objective: next_token, or {instead}"
        )
    for hook, how in _HOOKS.items():
        if not any(_offers(module, hook) for module in model.modules()):
            raise UsageError(
                f"{mesh}: no module of {type(model).__name__} has an attribute `{hook}` that can be replaced, as gpt's have: "
                f"set {how}, or {instead}"
            )
    for name, module in model.named_modules():
        if isinstance(module, _MIXING):
            raise UsageError(
                f"{mesh}: {name or 'the model'} is a {type(module).__name__}, in which positions meet that are on other "
                f"processes: attend through an attribute `attend`, or {instead}"
            )
    columns = _columns(objective)
    for name in columns:
        if len(shapes[name]) != 1:
            shown = ", ".join(map(str, ("rows", *shapes[name])))
            raise UsageError(f"{mesh} splits columns [rows, positions], and {name} is [{shown}]: {instead}")
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
        f"context={world.context_size} gives each process two stretches of a sequence, and {length} tokens are no "
        f"{step} equal ones: set a window of {lengths}{instead}"
    )


def own_stretches(objective: Objective, batch: Batch, world: World) -> Batch:
    """This process's tokens of each row, of the columns that the objective reads."""
    if world.context_size == 1:
        return batch
    found = {}
    for name in _columns(objective):
        column = batch[name]
        check_length(column.shape[1], world)
        found[name] = torch.cat([column[:, first:end] for first, end in world.stretches(column.shape[1])], 1)
    return found


def loss_of_own(loss: LossFunction, objective: Objective, world: World) -> LossFunction:
    """Over this process's tokens of a batch."""

    def own(model: nn.Module, batch: Batch) -> Loss:
        return loss(model, own_stretches(objective, batch, world))

    return own


class Positions:
    """Where in the sequence this process's tokens stand."""

    def __init__(self, world: World) -> None:
        self._world = world

    def __call__(self, length: int, device: torch.device) -> Tensor:
        spans = self._world.stretches(length * self._world.context_size)
        return torch.cat([torch.arange(first, end, device=device) for first, end in spans])


class SplitAttention:
    """From this process's positions to those of all, called as torch's function is."""

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
                f"context={size}: the model attends with a mask of its own, as it does where several texts are packed into a "
                f"row: it knows no positions of other processes. Use rows of one text each, or data={self._world.token_size}"
            )
        if key.shape[-2] != own:
            raise UsageError(f"context={size} splits attention of a sequence to itself: {own} queries met {key.shape[-2]} keys")
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
        """In the order of the sequence: the first stretches of all processes, and their second ones backwards."""
        gathered = self._gather(own[None], 0, self._group)
        fronts, backs = gathered.chunk(2, -2)
        return torch.cat([*fronts.unbind(0), *reversed(backs.unbind(0))], -2)


def attend_to_past(query: Tensor, key: Tensor, value: Tensor, **how: Any) -> Tensor:
    """Causal, where the last query stands at the last key."""
    queries, keys = query.shape[-2], key.shape[-2]
    if query.is_cuda:  # whose kernels need no mask, which would be as large as the scores
        from torch.nn.attention.bias import causal_lower_right

        mask: Any = causal_lower_right(queries, keys)
    else:
        mask = torch.ones(queries, keys, dtype=torch.bool, device=query.device).tril(keys - queries)
    return F.scaled_dot_product_attention(query, key, value, attn_mask=mask, **how)


def _gathering() -> Callable[..., Tensor]:
    """Torch's all-gather that is differentiated as a reduce-scatter, by the name that it has."""
    from torch.distributed import _functional_collectives as collectives

    new: Callable[..., Tensor] | None = getattr(collectives, "all_gather_single_autograd", None)
    return collectives.all_gather_tensor_autograd if new is None else new  # the old one before torch 2.13


def _offers(module: nn.Module, hook: str) -> bool:
    return callable(getattr(module, hook, None))


def _columns(objective: Objective) -> list[str]:
    return list(dict.fromkeys((*objective.inputs.columns, "y")))
