"""Exchanges gradients and gathers weights with torch's parallel engines (DDP, FSDP2) around the model.

An engine wraps a module that runs any computation with the model, so that every loss goes through it: also a loss head that
reads the model's weights directly, or a user's function. Engines average over processes; so the loss that is differentiated is
the sum over this process's rows, times the number of processes, divided by the rows of all.
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
    """The module that an engine wraps."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, compute: Look, batch: Batch) -> Any:
        return compute(self.model, batch)


class Tallied(Root):
    """With two extra parameters whose gradients are the numbers to sum: they are exchanged with those of the weights."""

    def __init__(self, model: nn.Module, device: torch.device) -> None:
        super().__init__(model)
        fine = any(parameter.dtype == torch.float64 for parameter in model.parameters())
        self.tally = nn.Parameter(torch.zeros(2, dtype=torch.float64 if fine else torch.float32, device=device))

    def forward(self, compute: Look, batch: Batch) -> Any:
        return compute(self.model, batch), self.tally * 1


class Replicas(Exchange):
    """Each process has all weights; gradients are summed in buckets during the backward."""

    rehearses = True

    def __init__(self, model: nn.Module, loss: LossFunction, settings: Settings, world: World) -> None:
        super().__init__(model, loss, world)
        compiled = settings.compile != "off"  # the compiler can't trace the tally
        self._root = Root(model) if compiled else Tallied(model, torch.device(settings.device))
        self._bucket_mb = settings.bucket_mb
        self._engine = self._made()
        self._tally: Tensor | None = None

    def loss(self, model: nn.Module, batch: Batch) -> Loss:
        found = self._engine(self._loss, batch)
        if isinstance(self._root, Tallied):
            found, self._tally = found
        computed: Loss = found
        return computed

    def send(self, totals: Tensor) -> tuple[Tensor | None, Callable[[], Tensor]]:
        """Without a separate exchange, which for two numbers would take as long as for many."""
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
        self._engine = self._made(find_unused_parameters=True)

    def train_others(self) -> None:
        self._engine = self._made(init_sync=False)  # the first process's running statistics are not those of the others

    def _made(self, **more: bool) -> Any:
        return _ENGINE(
            self._root,
            bucket_cap_mb=self._bucket_mb,
            gradient_as_bucket_view=True,
            **more,
            **{_SYNC_BUFFERS: False},  # batch statistics are exchanged elsewhere, or a degraded event says that they are not
        )


class Shards(Exchange):
    """Each process has a part of every weight and its optimizer state; weights of a block are gathered when it is used."""

    def __init__(self, model: nn.Module, loss: LossFunction, settings: Settings, world: World, mesh: Any) -> None:
        super().__init__(model, loss, world)
        self._root: Any = Root(model)
        self._sharded: list[Any] = spread(self._root, mesh, settings, reshard=settings.reshard)
        self._order: Sequence[Any] = self._sharded  # order in which a forward reaches them
        self._reshards = settings.reshard

    def loss(self, model: nn.Module, batch: Batch) -> Loss:
        found: Loss = self._root(self._loss, batch)
        return found

    def look(self, compute: Look, batch: Batch) -> Any:
        """If this process runs out of memory, the others still finish their forward, and all may try again."""
        passed: list[nn.Module] = []
        failed: list[RuntimeError | MemoryError] = []

        def guarded(model: nn.Module, batch: Batch) -> Any:
            """Lets the engine finish this forward too; otherwise it would take the next one for the same."""
            try:
                return compute(model, batch)
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error):
                    raise
                failed.append(error.with_traceback(None))  # the traceback would hold the tensors of the failed forward

        hooks = [module.register_forward_pre_hook(lambda module, given: passed.append(module)) for module in self._sharded]
        try:
            found = self._root(guarded, batch)
            self._root.reshard()  # normally done by the backward
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
        """Frees gathered weights afterwards, because they may have been those of an average."""
        try:
            yield
        finally:
            let_go(self._root)

    def _gather_with_the_others(self, passed: Sequence[Any]) -> None:
        """Takes part in the gathers of the forward that this process could not finish. The result is not used."""
        for module in self._order[len(passed) :]:
            module.unshard()
        if self._reshards:
            for module in self._sharded:
                module.reshard()


class Summed(Exchange):
    """For split weights that several processes have copies of: gradients are summed after the backward."""

    averages = False

    def __init__(self, model: nn.Module, loss: LossFunction, settings: Settings, world: World, group: Any) -> None:
        super().__init__(model, loss, world)
        self._group, self._bucket_bytes = group, settings.bucket_mb << 20

    def end(self, parameters: Sequence[Tensor]) -> None:
        sum_gradients_(parameters, self._group, self._bucket_bytes)


def shard_mesh(world: World) -> Any:
    """Weights are split along its last axis. Processes with other parts of the same rows count like those with other rows."""
    names = world.mesh.mesh_dim_names
    if "context" in names:
        return world.mesh[("shard", "context")]._flatten("shard_context")
    return world.mesh[("data", "shard") if "data" in names else "shard"]


def exchange_for(
    world: World, model: nn.Module, loss: LossFunction, settings: Settings, plan: Mapping[str, str] | None = None
) -> Exchange:
    """Call before making the optimizer, because splitting replaces parameters. `plan`: for a model that is not built in."""
    names = () if world.mesh is None else world.mesh.mesh_dim_names
    if "tensor" in names:
        from flatout.engine.parallel.tensor import split_tensors

        split_tensors(model, world.mesh["tensor"], plan)
    if "shard" in names:
        return Shards(model, loss, settings, world, shard_mesh(world))
    if world.token_size == 1:
        return Exchange(model, loss)
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise UsageError("all parameters of the model are frozen: there is nothing for processes to share")
    if "tensor" in names:
        return Summed(model, loss, settings, world, world.mesh.get_group("data"))
    return Replicas(model, loss, settings, world)
