"""Many steps between exchanges, for slow networks: local SGD, DiLoCo, and exchanges that are applied with a delay.

Every process takes its own steps on its share of the batch, exactly like a single process: the mean over its own rows, its own
clipping, its own optimizer state. After `every` steps a round ends. The change of each process's weights in a round, its
pseudo-gradient (old minus new), is averaged over processes, weighted by the rows that each has seen. An outer optimizer (SGD
with momentum) applies the average to the global weights, which are the same everywhere, and every process continues from these.
With rate 1 and no momentum this averages the weights; with rounds of one step of plain SGD it is data parallelism.

With a `delay`, the sum starts at the end of a round and is applied this many steps later. Until then each process continues
with its own weights. When the average arrives, it replaces the process's own pseudo-gradient, and the steps taken since then
stay (for plain averaging, this is delayed gradient averaging). So every step is in exactly one pseudo-gradient, however late
it arrives. With a delay longer than a round, several of them are under way.

Invariant: a process's weights are the global weights, minus its own pseudo-gradients under way, plus what it has learned since
the round began.

Statistics in buffers (batch norm) are averaged with the weights, without the outer optimizer. Integer buffers and those that
are not saved with the model differ between processes.

The global weights are evaluated and saved as the model: the result of all complete exchanges. Evaluating and saving exchange
nothing, so how often that happens does not change what is learned. The end of a run does: what is under way arrives, and the
open round ends early (`finish`). A checkpoint waits for the sums under way and stores them until they are due, together with
each process's own state, so that the same number of processes resumes exactly. With another number, the round ends as with
`finish`, and all continue from the global weights with the optimizer state of the first process.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import reduce
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from flatout.base.errors import UsageError
from flatout.engine.one_process import Exchange
from flatout.engine.parallel.rounds import Rounds
from flatout.engine.passes import Attempts, Batch, LossFunction, OwnGradients, Passes
from flatout.engine.records import Interval
from flatout.world.world import World

_LEAST = torch.float32  # narrower weights are summed in this format


@dataclass
class _Sent:
    """A pseudo-gradient under way: `mean` is the average of all once `wait` has been called."""

    own: Tensor
    mean: Tensor
    wait: Callable[[], object]
    due: int  # steps until it is applied


class LocalUpdates(Exchange):
    """All processes create theirs at the same point. A single process has rounds and an outer optimizer too."""

    def __init__(self, model: nn.Module, loss: LossFunction, rounds: Rounds, world: World) -> None:
        super().__init__(model, loss)
        _check_layout(world)
        self._model, self._rounds, self._world = model, rounds, world
        self._steps = self._rows = self._own_rows = 0  # of the open round
        self._in_flight: deque[_Sent] = deque()
        weights = {name: parameter.detach() for name, parameter in model.named_parameters() if parameter.requires_grad}
        if not weights:
            raise UsageError("all parameters of the model are frozen: there is nothing for processes to exchange")
        kept = model.state_dict().keys()
        self._weights = list(weights)
        self._statistics = [name for name, buffer in model.named_buffers() if name in kept and _is_averaged(buffer)]
        tensors = self._live()
        self._shapes = [tensor.shape for tensor in tensors]
        size, dtype = sum(tensor.numel() for tensor in tensors), reduce(torch.promote_types, (t.dtype for t in tensors), _LEAST)
        self._anchor = self._read(torch.empty(size, dtype=dtype, device=tensors[0].device))  # the global weights
        self._trained = sum(weight.numel() for weight in weights.values())  # numbers of weights; statistics come after them
        self._momentum = torch.zeros_like(self._anchor) if rounds.outer.momentum else None
        self._group: Any = None
        if world.size > 1:
            self._group = dist.new_group()  # so that other exchanges don't wait behind a whole model
            dist.broadcast(self._anchor, src=0, group=self._group)
            self._write(self._anchor)

    def takes_part(self, rows: int) -> bool:
        """Whether this process has any row of the batch: the last batch of a run may have fewer rows than processes."""
        low, high = self._world.share(rows)
        return low < high

    @torch.no_grad()
    def after_step(self, rows: int) -> None:
        """Call after each step, also if this process had no rows in it. `rows`: of the batch of all processes."""
        low, high = self._world.share(rows)
        self._steps, self._rows, self._own_rows = self._steps + 1, self._rows + rows, self._own_rows + high - low
        for sent in self._in_flight:
            sent.due -= 1
        self._land_due()
        if self._steps == self._rounds.every:
            self._send()
            self._land_due()

    @torch.no_grad()
    def finish(self) -> None:
        """Call at the end of a run: applies everything to the global weights, and gives them to every process."""
        while self._in_flight:
            self._land()
        if self._steps:
            self._send()
            self._land()

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Inside, the model has the global weights."""
        own = self._read(torch.empty_like(self._anchor))
        self._write(self._anchor)
        try:
            yield
        finally:
            self._write(own)

    def weights(self) -> dict[str, Tensor]:
        """The model's state with the global weights, which are not copied and change with the next exchange."""
        of_all = {id(t): v.to(t.dtype) for t, v in zip(self._tensors(), self._views(self._anchor), strict=True)}
        return {name: of_all.get(id(t), t.detach()) for name, t in self._model.state_dict(keep_vars=True).items()}

    def of_all(self, interval: Interval) -> Interval:
        """Over all processes: the loss over all rows, the largest norm. If one is not finite, the result is not finite."""
        said = self._world.gather([interval.losses, interval.weights, interval.norms])
        losses, weights, norms = ([torch.tensor(one[part], dtype=torch.float64) for one in said] for part in range(3))
        whole = torch.stack(weights).sum(0)
        loss = (torch.stack(losses) * torch.stack(weights)).sum(0) / whole
        return Interval(loss.tolist(), whole.tolist(), torch.stack(norms).amax(0).tolist() if len(norms[0]) else [])

    # ---- checkpoints ----

    def tree(self, own: Mapping[str, Any]) -> dict[str, Any]:
        """What a resume needs. `own`: what else differs between processes, such as the optimizer's state.

        Under `of` each process has only its own part, so every process must write to the checkpoint. The rest is the same on
        all. Waits for what is under way, and changes nothing.
        """
        for sent in self._in_flight:
            sent.wait()
        mine = {
            "rows": self._own_rows,
            "weights": self._named(self._read(torch.empty_like(self._anchor))),  # a copy: `model` may be loaded over them
            "in_flight": [self._named(sent.own) for sent in self._in_flight],
            **own,
        }
        return {
            "processes": self._world.data_size,
            "steps": self._steps,
            "rows": self._rows,
            "anchor": self._named(self._anchor),
            "momentum": None if self._momentum is None else self._named(self._momentum),
            "in_flight": [{"due": sent.due, "mean": self._named(sent.mean)} for sent in self._in_flight],
            "of": {str(self._world.data_rank): mine},
        }

    @torch.no_grad()
    def restore(self, tree: Mapping[str, Any]) -> Mapping[str, Any]:
        """Restores this process and returns its `own`. Exchanges nothing, so one process may call it alone.

        With another number of processes than in the checkpoint, `tree` must have the parts of all.
        """
        for sent in self._in_flight:
            sent.wait()  # it writes to memory that is freed next
        self._in_flight.clear()
        self._fill(self._anchor, tree["anchor"])
        if self._momentum is not None:
            self._fill(self._momentum, tree["momentum"])
        if tree["processes"] != self._world.data_size:
            self._steps = self._rows = self._own_rows = 0
            self._end_round_of(tree)
            self._write(self._anchor)
            return _own_of(tree, 0)
        mine = _own_of(tree, self._world.data_rank)
        self._steps, self._rows, self._own_rows = tree["steps"], tree["rows"], mine["rows"]
        for sent, own in zip(tree["in_flight"], mine["in_flight"], strict=True):
            self._in_flight.append(_Sent(self._flat(own), self._flat(sent["mean"]), _nothing, sent["due"]))
        self._write(self._flat(mine["weights"]))
        return mine

    def _end_round_of(self, tree: Mapping[str, Any]) -> None:
        """Does what `finish` would have done on those processes."""
        last = torch.zeros_like(self._anchor)
        for process in range(tree["processes"]):
            own = _own_of(tree, process)
            change = self._anchor - self._flat(own["weights"])
            for sent in own["in_flight"]:
                change.sub_(self._flat(sent))
            last.add_(change, alpha=own["rows"] / max(1, tree["rows"]))
        for sent in tree["in_flight"]:
            self._step_outer(self._flat(sent["mean"]))
        if tree["steps"]:
            self._step_outer(last)

    # ---- an exchange ----

    def _send(self) -> None:
        own = self._read(torch.empty_like(self._anchor)).neg_().add_(self._anchor)
        for sent in self._in_flight:
            own.sub_(sent.own)
        share = self._own_rows / self._rows
        mean = own * share if self._rounds.delay else own.mul_(share)  # without a delay the own one is not needed again
        self._in_flight.append(_Sent(own, mean, self._begin_sum(mean), self._rounds.delay))
        self._steps = self._rows = self._own_rows = 0

    def _land_due(self) -> None:
        while self._in_flight and self._in_flight[0].due <= 0:
            self._land()

    def _land(self) -> None:
        sent = self._in_flight.popleft()
        sent.wait()
        step = self._step_outer(sent.mean)
        if self._in_flight or self._steps:
            torch._foreach_add_(self._live(), self._views(sent.own.sub_(step)))
        else:  # no steps since then: the same bits on all processes
            self._write(self._anchor)

    def _step_outer(self, mean: Tensor) -> Tensor:
        """Returns the step that was taken, in the memory of the average."""
        outer, weights = self._rounds.outer, mean[: self._trained]
        if self._momentum is not None:
            momentum = self._momentum[: self._trained].mul_(outer.momentum).add_(weights)
            weights.add_(momentum, alpha=outer.momentum) if outer.nesterov else weights.copy_(momentum)
        weights.mul_(outer.rate)
        self._anchor.sub_(mean)
        return mean

    def _begin_sum(self, tensor: Tensor) -> Callable[[], object]:
        if self._group is None:
            return _nothing
        work = dist.all_reduce(tensor, group=self._group, async_op=True)
        assert work is not None
        wait: Callable[[], object] = work.wait
        return wait

    # ---- one flat tensor of all weights, for one exchange ----

    @property
    def _names(self) -> list[str]:
        return self._weights + self._statistics

    def _tensors(self) -> list[Tensor]:
        """Looked up every time, because a module may replace a buffer."""
        weights, statistics = dict(self._model.named_parameters()), dict(self._model.named_buffers())
        return [weights[name] for name in self._weights] + [statistics[name] for name in self._statistics]

    def _live(self) -> list[Tensor]:
        return [tensor.detach() for tensor in self._tensors()]

    def _views(self, flat: Tensor) -> list[Tensor]:
        pieces = flat.split([shape.numel() for shape in self._shapes])
        return [piece.view(shape) for piece, shape in zip(pieces, self._shapes, strict=True)]

    def _named(self, flat: Tensor) -> dict[str, Tensor]:
        return dict(zip(self._names, self._views(flat), strict=True))

    @torch.no_grad()
    def _read(self, flat: Tensor) -> Tensor:
        torch._foreach_copy_(self._views(flat), self._live())
        return flat

    @torch.no_grad()
    def _write(self, flat: Tensor) -> None:
        torch._foreach_copy_(self._live(), self._views(flat))

    def _flat(self, named: Mapping[str, Tensor]) -> Tensor:
        return self._fill(torch.empty_like(self._anchor), named)

    def _fill(self, flat: Tensor, named: Mapping[str, Tensor]) -> Tensor:
        torch._foreach_copy_(self._views(flat), [named[name].to(flat.device) for name in self._names])
        return flat


class LocalGradients(OwnGradients):
    """Gradients of this process's own rows, if it has any of a batch."""

    def __init__(self, passes: Passes, updates: LocalUpdates) -> None:
        super().__init__(passes)
        self._updates = updates

    def take(self, step: Attempts, batch: Batch, whole: int | None) -> None:
        if whole is None or self._updates.takes_part(whole):
            super().take(step, batch, whole)
        else:
            step.sit_out()


def _own_of(tree: Mapping[str, Any], process: int) -> Mapping[str, Any]:
    own: Mapping[str, Any] = tree["of"][str(process)]
    return own


def _is_averaged(buffer: Tensor) -> bool:
    """A mask with infinities is no statistic, and infinity minus infinity is not a number."""
    return buffer.is_floating_point() and bool(buffer.isfinite().all())


def _check_layout(world: World) -> None:
    names = () if world.mesh is None else world.mesh.mesh_dim_names
    if others := [name for name in names if name != "data"]:
        raise UsageError(
            f"exchange needs processes with all weights and whole rows, and the mesh splits them by "
            f"{', '.join(others)}: use --mesh data={world.size}, or remove exchange"
        )


def _nothing() -> None:
    pass
