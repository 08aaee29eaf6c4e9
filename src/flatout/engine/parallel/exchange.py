"""How gradients get from process to process, and weights to where they are used: torch's engines around the model.

An engine's root is a module that computes whatever is asked of the model, so that every way to a loss goes through it: a loss
head that reads the model's weights beside its forward, a function of the user's own. Engines average over processes; what is
differentiated is therefore the sum over this process's rows times the number of processes, over the rows of all.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from flatout.base.errors import OutOfMemory, UsageError
from flatout.engine.one_process import Exchange, Look
from flatout.engine.parallel.spread import let_go, spread
from flatout.engine.parallel.sums import sum_gradients_
from flatout.engine.passes import Batch, Loss, LossFunction
from flatout.engine.settings import Settings
from flatout.machine.out_of_memory import is_out_of_memory
from flatout.world.world import World

_ENGINE: Any = nn.parallel.DistributedDataParallel
_NAMES = inspect.signature(_ENGINE.__init__).parameters
_SYNC_BUFFERS = "forward_sync_buffers" if "forward_sync_buffers" in _NAMES else "broadcast_buffers"  # before torch 2.13


class Root(nn.Module):
    """What an engine is wrapped around."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, compute: Look, batch: Batch) -> Any:
        return compute(self.model, batch)


class Tallied(Root):
    """With two numbers whose gradients are whatever is to be summed: they travel with those of the weights."""

    def __init__(self, model: nn.Module, device: torch.device) -> None:
        super().__init__(model)
        fine = any(parameter.dtype == torch.float64 for parameter in model.parameters())
        self.tally = nn.Parameter(torch.zeros(2, dtype=torch.float64 if fine else torch.float32, device=device))

    def forward(self, compute: Look, batch: Batch) -> Any:
        return compute(self.model, batch), self.tally * 1


class Replicas(Exchange):
    """Each process has all weights; gradients are summed in buckets while the backward goes on."""

    rehearses = True

    def __init__(self, model: nn.Module, loss: LossFunction, settings: Settings, world: World) -> None:
        super().__init__(model, loss, world)
        compiled = settings.compile != "off"  # which can't look into what is kept here
        self._root = Root(model) if compiled else Tallied(model, torch.device(settings.device))
        self._bucket_mb = settings.bucket_mb
        self._engine = self._made(unused=False)
        self._tally: Tensor | None = None

    def loss(self, model: nn.Module, batch: Batch) -> Loss:
        found = self._engine(self._loss, batch)
        if isinstance(self._root, Tallied):
            found, self._tally = found
        computed: Loss = found
        return computed

    def send(self, totals: Tensor) -> tuple[Tensor | None, Callable[[], Tensor]]:
        """No exchange of its own: that of two numbers takes as long as one of many."""
        if self._tally is None or not isinstance(self._root, Tallied):
            return super().send(totals)
        tally, self._root.tally.grad = self._root.tally, None

        def summed() -> Tensor:
            assert tally.grad is not None
            return tally.grad.to(totals.dtype) * self._world.token_size

        return (self._tally * totals.to(tally.dtype)).sum(), summed

    def held_back(self) -> AbstractContextManager[Any]:
        within: AbstractContextManager[Any] = self._engine.no_sync()
        return within

    def expect_unused(self) -> None:
        self._engine = self._made(unused=True)

    def _made(self, unused: bool) -> Any:
        return _ENGINE(
            self._root,
            bucket_cap_mb=self._bucket_mb,
            gradient_as_bucket_view=True,
            find_unused_parameters=unused,
            **{_SYNC_BUFFERS: False},  # whoever has statistics of batches is told, or has them exchanged
        )


class Shards(Exchange):
    """Each process keeps a part of every weight and of its optimizer state; a block's weights are gathered when it is used."""

    def __init__(self, model: nn.Module, loss: LossFunction, settings: Settings, world: World, mesh: Any) -> None:
        super().__init__(model, loss, world)
        self._root: Any = Root(model)
        self._sharded: list[Any] = spread(self._root, mesh, settings, reshard=settings.reshard)
        self._order: Sequence[Any] = self._sharded  # in which a forward comes to them
        self._reshards = settings.reshard

    def loss(self, model: nn.Module, batch: Batch) -> Loss:
        found: Loss = self._root(self._loss, batch)
        return found

    def look(self, compute: Look, batch: Batch) -> Any:
        """Where memory runs out on this process, the others still end their forward, and it may be tried again by all."""
        passed: list[nn.Module] = []
        failed: list[RuntimeError | MemoryError] = []

        def guarded(model: nn.Module, batch: Batch) -> Any:
            """So that the engine ends this forward too: it would otherwise take the next one for the same."""
            try:
                return compute(model, batch)
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error):
                    raise
                failed.append(error.with_traceback(None))  # which would hold the tensors of what failed

        hooks = [module.register_forward_pre_hook(lambda module, given: passed.append(module)) for module in self._sharded]
        try:
            found = self._root(guarded, batch)
            self._root.reshard()  # which a backward would have done
            if failed and not self._world.is_split_within:
                self._gather_with_the_others(passed)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            reason = str(error).partition("\n")[0]
            raise OutOfMemory(f"out of memory while weights are gathered ({reason}): shard them over more processes") from error
        finally:
            for hook in hooks:
                hook.remove()
        if failed:
            raise failed.pop()
        self._order = passed
        return found

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Weights that were gathered to look are not kept: they may have been an average's."""
        try:
            yield
        finally:
            let_go(self._root)

    def _gather_with_the_others(self, passed: Sequence[Any]) -> None:
        """What they still gather in the forward that this process could not end. Nobody looks at what comes of it."""
        for module in self._order[len(passed) :]:
            module.unshard()
        if self._reshards:
            for module in self._sharded:
                module.reshard()


class Summed(Exchange):
    """Split weights that are on several processes alike: their gradients are summed after the backward."""

    averages = False

    def __init__(self, model: nn.Module, loss: LossFunction, settings: Settings, world: World, group: Any) -> None:
        super().__init__(model, loss, world)
        self._group, self._bucket_bytes = group, settings.bucket_mb << 20

    def end(self, parameters: Sequence[Tensor]) -> None:
        sum_gradients_(parameters, self._group, self._bucket_bytes)


def shard_mesh(world: World) -> Any:
    """Weights are split along its last axis. Who has other parts of the same rows takes part in that as who has other rows."""
    names = world.mesh.mesh_dim_names
    if "context" in names:
        return world.mesh[("shard", "context")]._flatten("shard_context")
    return world.mesh[("data", "shard") if "data" in names else "shard"]


def exchange_for(
    world: World, model: nn.Module, loss: LossFunction, settings: Settings, plan: Mapping[str, str] | None = None
) -> Exchange:
    """Before the optimizer is made: splitting replaces the parameters. `plan`: of a model that brings none."""
    names = () if world.mesh is None else world.mesh.mesh_dim_names
    if "tensor" in names:
        from flatout.engine.parallel.tensor import split_tensors

        split_tensors(model, world.mesh["tensor"], plan)
    if "shard" in names:
        return Shards(model, loss, settings, world, shard_mesh(world))
    if world.token_size == 1:
        return Exchange(model, loss)
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise UsageError("no parameter of the model is trained: there is nothing to share between processes")
    if "tensor" in names:
        return Summed(model, loss, settings, world, world.mesh.get_group("data"))
    return Replicas(model, loss, settings, world)
