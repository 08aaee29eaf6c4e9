"""Many steps between exchanges, for slow networks: local SGD, DiLoCo, and exchanges that arrive late while computing goes on.

Every process takes steps of its own, each exactly the step of one process by itself on its share of the batch: the mean over
its own rows, its own clipping, its own optimizer state. After `every` steps a round ends. What each process's weights have
changed by in it, its pseudo-gradient (old minus new), is averaged over processes, weighted by the rows that each has seen, and
an outer optimizer (SGD, with momentum) applies it to the global weights, which are the same everywhere. Then every process goes
on from these. With rate 1 and no momentum that is averaging the weights; for rounds of one step of plain SGD, it is data
parallel.

With a `delay` the sum is begun at the end of a round and applied so many steps later. Until then each process goes on with its
own weights; when the average arrives, its own pseudo-gradient in them is replaced by what the outer optimizer made of the
average, and the steps that it took since are kept on top (for plain averaging, that is delayed gradient averaging). So every
step is in exactly one pseudo-gradient, however late. A delay longer than a round leaves several of them under way.

What holds at any time: a process's weights are the global ones, less its own pseudo-gradients that are under way, and what it
has learned since the round began.

Statistics that a model keeps in buffers (batch norm) are averaged with the weights, past the outer optimizer. Whole numbers and
what is not kept with the model stay as each process has them.

What is evaluated and saved as the model are the global weights: the outcome of all exchanges that are complete. Looking never
exchanges anything, so how often one evaluates or saves changes nothing of what is learned. The end of a run does: what is under
way arrives, and the round that is open ends early (`finish`). A checkpoint waits for the sums under way and keeps them to be
applied when they are due; with what each process has of its own, as many processes go on from it exactly. On another number
of them, the round ends as `finish` would end it, and all go on from the global weights with the first one's optimizer state.
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

_LEAST = torch.float32  # what narrower weights are added up in


@dataclass
class _Sent:
    """A pseudo-gradient under way: `mean` is the average of all once `wait` has been called."""

    own: Tensor
    mean: Tensor
    wait: Callable[[], object]
    due: int  # in so many steps


class LocalUpdates(Exchange):
    """All processes make theirs at the same place of the program. A world of one has rounds and an outer optimizer too."""

    def __init__(self, model: nn.Module, loss: LossFunction, rounds: Rounds, world: World) -> None:
        super().__init__(model, loss)
        _check_layout(world)
        self._model, self._rounds, self._world = model, rounds, world
        self._steps = self._rows = self._own_rows = 0  # of the round that is open
        self._in_flight: deque[_Sent] = deque()
        weights = {name: parameter.detach() for name, parameter in model.named_parameters() if parameter.requires_grad}
        if not weights:
            raise UsageError("no parameter of the model is trained: there is nothing to exchange between processes")
        kept = model.state_dict().keys()
        self._weights = list(weights)
        self._statistics = [name for name, buffer in model.named_buffers() if name in kept and _is_averaged(buffer)]
        tensors = self._live()
        self._shapes = [tensor.shape for tensor in tensors]
        size, dtype = sum(tensor.numel() for tensor in tensors), reduce(torch.promote_types, (t.dtype for t in tensors), _LEAST)
        self._anchor = self._read(torch.empty(size, dtype=dtype, device=tensors[0].device))  # the global weights
        self._trained = sum(weight.numel() for weight in weights.values())  # of these; statistics come after them
        self._momentum = torch.zeros_like(self._anchor) if rounds.outer.momentum else None
        self._group: Any = None
        if world.size > 1:
            self._group = dist.new_group()  # what else is exchanged does not queue behind a whole model
            dist.broadcast(self._anchor, src=0, group=self._group)
            self._write(self._anchor)

    def takes_part(self, rows: int) -> bool:
        """Whether this process has any of a batch of so many: the last one of a run may have fewer rows than processes."""
        low, high = self._world.share(rows)
        return low < high

    @torch.no_grad()
    def after_step(self, rows: int) -> None:
        """Call after each step, also where this process had no part in it. `rows`: of the batch of all processes."""
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
        """At the end of a run: all that was learned is in the global weights, and every process has these."""
        while self._in_flight:
            self._land()
        if self._steps:
            self._send()
            self._land()

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """The model has the global weights inside this context."""
        own = self._read(torch.empty_like(self._anchor))
        self._write(self._anchor)
        try:
            yield
        finally:
            self._write(own)

    def weights(self) -> dict[str, Tensor]:
        """The model's state with the global weights. They are not copied: they change with the next exchange."""
        of_all = {id(t): v.to(t.dtype) for t, v in zip(self._tensors(), self._views(self._anchor), strict=True)}
        return {name: of_all.get(id(t), t.detach()) for name, t in self._model.state_dict(keep_vars=True).items()}

    def of_all(self, interval: Interval) -> Interval:
        """What the steps did on all processes: the loss over the rows of all, the largest norm. Not a number on one: on all."""
        said = self._world.gather([interval.losses, interval.weights, interval.norms])
        losses, weights, norms = ([torch.tensor(one[part], dtype=torch.float64) for one in said] for part in range(3))
        whole = torch.stack(weights).sum(0)
        loss = (torch.stack(losses) * torch.stack(weights)).sum(0) / whole
        return Interval(loss.tolist(), whole.tolist(), torch.stack(norms).amax(0).tolist() if len(norms[0]) else [])

    # ---- checkpoints ----

    def tree(self, own: Mapping[str, Any]) -> dict[str, Any]:
        """What a resume needs. `own`: what else differs between processes, such as the optimizer's state.

        Under `of` each process has its own part alone: it is to be kept by a store that every process writes to. The rest is
        the same on all. Waits for what is under way, and changes nothing.
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
        """Onto this process; returns the `own` that it is to go on with. Exchanges nothing, so one process may do it alone.

        Onto another number of processes, `tree` has to have the parts of all.
        """
        for sent in self._in_flight:
            sent.wait()  # into memory that is then free
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
        """As `finish` would have there."""
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
        mean = own * share if self._rounds.delay else own.mul_(share)  # without a delay nobody asks for the own one again
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
        else:  # nothing was learned since: the same bits on all processes
            self._write(self._anchor)

    def _step_outer(self, mean: Tensor) -> Tensor:
        """The step that was taken, in the memory of the average."""
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

    # ---- one tensor for all weights, so that one exchange takes them all ----

    @property
    def _names(self) -> list[str]:
        return self._weights + self._statistics

    def _tensors(self) -> list[Tensor]:
        """Looked up every time: a module may put another buffer in the place of one."""
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
    """Of a process's own rows, where it has any of a batch."""

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
    """A mask with an infinity in it is no statistic, and infinity less infinity no change."""
    return buffer.is_floating_point() and bool(buffer.isfinite().all())


def _check_layout(world: World) -> None:
    names = () if world.mesh is None else world.mesh.mesh_dim_names
    if others := [name for name in names if name != "data"]:
        raise UsageError(
            f"exchange is for processes that each have all weights and whole rows, and the mesh splits them by "
            f"{', '.join(others)}: --mesh data={world.size}, or leave exchange out"
        )


def _nothing() -> None:
    pass
