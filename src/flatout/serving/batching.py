"""When which requests are run together. Decisions only: the time is given, so arrivals can be simulated.

batcher = Batcher([BatchedModel(0, "churn", CostCurve([(1, 0.001), (64, 0.004)]), LatencyGoal.parse("p99 50 ms"))])
refused = batcher.arrive(requests, now_s, free_s)     # the others wait in their queues
decision = batcher.next(now_s, free_s)                # a batch to send now, or until when to wait
batch.model.took(batch.rows, seconds)                 # the cost of batches is revised
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import inf, sqrt
from typing import Any

from flatout.base.latency_goal import LatencyGoal
from flatout.serving.arrivals import ArrivalRate
from flatout.serving.asking import Reason
from flatout.serving.costs import CostCurve

Sizes = tuple[int, ...]

_HEADROOM = 1.2  # a batch size keeps up if its rate is this much above the rate of arrivals
_DRY = 3.0  # mean gaps between arrivals without one: no more are coming soon
_LEVEL_S = 10.0  # a request that waited this long goes before newer ones of the next higher priority
_PATIENT_S = 1.0  # deadlines farther away do not change the order, so that nobody is passed over for ever
_LONGEST_QUEUE_S = 30.0  # of work, for models without a goal
_SHORTEST_RETRY_S = 0.001
_REVISED = 16  # batches until the size of a full batch is looked at again
_OF_GOAL = 0.9  # of the goal's time is the executor's; the rest is for the network and the answer's text


class Waiting:
    """One request in a queue. Where its rows are is not the batcher's business."""

    alone = False  # it is run in a batch of its own, since a batch with others failed
    taken = 0  # rows that are in a batch, of a request that is larger than a batch
    timing: Any = None  # of its batches so far, if it has several

    def __init__(
        self,
        id: int,
        model: int,
        rows: int,
        arrival_s: float,
        deadline_s: float = 0.0,
        priority: int = 0,
        sizes: Sizes = (),
        front: Any = None,
        offset: int = 0,
        power: int = 0,
    ) -> None:
        """A deadline of 0 is that of the model's goal."""
        self.id = id
        self.model = model
        self.rows = self.left = rows  # those without an answer are left
        self.arrival_s = self.order_s = arrival_s
        self.deadline_s = deadline_s
        self.priority = priority
        self.sizes = sizes
        self.front = front
        self.offset = offset
        self.power = power


@dataclass(slots=True)
class ReadyBatch:
    """Rows `start` to `start + rows` of a request that is larger than a batch; otherwise all rows of all requests."""

    model: BatchedModel
    sizes: Sizes
    requests: list[Waiting]
    rows: int
    reason: Reason
    start: int = 0


@dataclass(frozen=True, slots=True)
class TurnedAway:
    request: Waiting
    retry_after_s: float


@dataclass(slots=True)
class Decision:
    """`batch` is to be sent now. Without one, nothing can be decided before `until_s`, or before something arrives."""

    batch: ReadyBatch | None = None
    until_s: float = inf
    refused: list[TurnedAway] = field(default_factory=list)


class ShapeQueue:
    """Requests of one model whose rows have the same shape, in the order in which they are run."""

    __slots__ = ("line", "rows", "sizes")

    def __init__(self, sizes: Sizes) -> None:
        self.sizes = sizes
        self.line: list[Waiting] = []
        self.rows = 0

    def add(self, request: Waiting, rows: int) -> None:
        """`rows` are those that are not in a batch yet."""
        line = self.line
        if not line or line[-1].order_s <= request.order_s:
            line.append(request)
        else:
            insort(line, request, key=_order_s)
        self.rows += rows


class BatchedModel:
    """One model on the device: what its batches cost, its goal, and what waits for it."""

    def __init__(self, number: int, name: str, curve: CostCurve, goal: LatencyGoal | None = None) -> None:
        self.number, self.name, self.curve, self.goal = number, name, curve, goal
        self.arrivals = ArrivalRate()
        self.queues: dict[Sizes, ShapeQueue] = {}
        self.rows = 0  # in all queues
        self.rows_by_priority: dict[int, int] = {}
        self.used_s = 0.0  # of the device, to share it
        self._until_revised = _REVISED
        self.useful_rows = 1
        self.full_s = 0.0  # of a batch with useful_rows
        self.most_rows = 0  # in the queues of a model without a goal
        self.revise()

    def revise(self) -> None:
        """`useful_rows` are those of a full batch: more would not be faster, or two batches one after the other would take
        longer than the goal."""
        self.useful_rows = self.curve.full_rows
        if self.goal is not None:
            in_time = self.curve.rows_within(_OF_GOAL * self.goal.seconds / 2)
            self.useful_rows = min(self.useful_rows, max(1, in_time))
        self.full_s = self.curve.seconds(self.useful_rows)
        self.most_rows = int(_LONGEST_QUEUE_S * self.useful_rows / self.full_s)

    def first(self) -> ShapeQueue | None:
        """The queue whose first request is next in order."""
        if len(self.queues) == 1:
            return next(iter(self.queues.values()))
        return min(self.queues.values(), key=lambda queue: queue.line[0].order_s, default=None)

    def add(self, request: Waiting) -> None:
        queue = self.queues.get(request.sizes)
        if queue is None:
            queue = self.queues[request.sizes] = ShapeQueue(request.sizes)
        rows = request.rows - request.taken
        queue.add(request, rows)
        self.rows += rows
        by_priority, priority = self.rows_by_priority, request.priority
        by_priority[priority] = by_priority.get(priority, 0) + rows

    def left(self, queue: ShapeQueue, requests: Sequence[Waiting], rows: int) -> None:
        """These are no longer in the queue; `rows` are all their rows, or those of the piece that was taken."""
        queue.rows -= rows
        self.rows -= rows
        if not self.rows:
            self.rows_by_priority.clear()
        elif len(self.rows_by_priority) == 1 or len(requests) == 1:
            self.rows_by_priority[requests[0].priority] -= rows
        else:
            for request in requests:
                self.rows_by_priority[request.priority] -= request.rows
        if not queue.line:
            self.queues.pop(queue.sizes, None)

    def took(self, rows: int, seconds: float) -> None:
        """A batch was run: what batches cost is revised."""
        self.curve.took(rows, seconds)
        self.used_s += seconds
        self._until_revised -= 1
        if not self._until_revised:
            self._until_revised = _REVISED
            self.revise()

    def margin_s(self, seconds: float) -> float:
        """How much longer than expected a batch may take, for all but the share of requests that the goal lets go."""
        return 0.0 if self.goal is None else 1.25 * self.goal.deviations * self.curve.spread * seconds


class Batcher:
    """All models of one device."""

    def __init__(self, models: Iterable[BatchedModel]) -> None:
        self.models = {model.number: model for model in models}

    @property
    def rows(self) -> int:
        rows = 0
        for model in self.models.values():
            rows += model.rows
        return rows

    def arrive(self, requests: Iterable[Waiting], now_s: float, free_s: float) -> list[TurnedAway]:
        """Those that can't be answered in time; the others wait. `free_s` is when the device will have finished all that was
        sent to it."""
        refused = []
        begin_s = max(now_s, free_s)
        several = len(self.models) > 1
        for request in requests:
            model = self.models[request.model]
            rows = request.rows
            model.arrivals.add(rows, now_s)
            deadline_s = request.deadline_s
            if deadline_s == 0.0:
                deadline_s = inf if model.goal is None else request.arrival_s + _OF_GOAL * model.goal.seconds
                request.deadline_s = deadline_s
            patient_s = request.arrival_s + _PATIENT_S
            request.order_s = (deadline_s if deadline_s < patient_s else patient_s) + _LEVEL_S * request.priority
            is_idle = begin_s <= now_s and not (self._anything_waits() if several else model.rows)
            if not is_idle and (model.goal is not None or deadline_s != inf or model.rows > model.most_rows):
                late_s = self._late_s(model, request, begin_s)
                if late_s > 0:
                    refused.append(TurnedAway(request, max(_SHORTEST_RETRY_S, late_s)))
                    continue
            if several and not model.rows:  # the share of the device that it did not use is not saved for later
                busy = [other.used_s for other in self.models.values() if other.rows]
                model.used_s = max([model.used_s, *([min(busy)] if busy else [])])
            model.add(request)
        return refused

    def next(self, now_s: float, free_s: float) -> Decision:
        decision = Decision()
        ready: list[tuple[BatchedModel, ShapeQueue, Reason]] = []
        for model in self.models.values():
            if not model.rows:
                continue
            self._drop_late(model, now_s, decision)
            queue = model.first()
            if queue is None:
                continue
            reason, until_s = self._why(model, queue, now_s, free_s)
            if reason is not None:
                ready.append((model, queue, reason))
            else:
                decision.until_s = min(decision.until_s, until_s)
        if ready:
            model, queue, reason = ready[0] if len(ready) == 1 else self._most_urgent(ready, now_s)
            decision.batch = self._taken(model, queue, reason, now_s)
        return decision

    def put_back(self, batch: ReadyBatch) -> None:
        """The batch was not run. It must be the last that `next` gave."""
        model = batch.model
        for request in batch.requests:
            queue = model.queues.get(batch.sizes)
            if 0 < request.taken < request.rows and queue is not None:  # a piece; the rest is still in the queue
                queue.rows += batch.rows
                model.rows += batch.rows
                model.rows_by_priority[request.priority] += batch.rows
                request.taken = batch.start
            else:
                request.taken = batch.start
                model.add(request)

    def remove(self, request: Waiting) -> None:
        """The rest of a request that is larger than a batch, if it still waits."""
        model = self.models[request.model]
        queue = model.queues.get(request.sizes)
        if queue is not None and request in queue.line:
            queue.line.remove(request)
            model.left(queue, [request], request.rows - request.taken)

    def forget(self, front: object) -> None:
        """Requests of a front that is gone."""
        for model in self.models.values():
            for queue in list(model.queues.values()):
                gone = [request for request in queue.line if request.front is front]
                queue.line = [request for request in queue.line if request.front is not front]
                for request in gone:
                    model.left(queue, [request], request.rows - request.taken)

    def _anything_waits(self) -> bool:
        return any(model.rows for model in self.models.values())

    def _late_s(self, model: BatchedModel, request: Waiting, begin_s: float) -> float:
        """How long after its deadline the request would be answered; 0 or less if it can be in time."""
        deadline_s = request.deadline_s
        if model.goal is None and model.rows > model.most_rows:
            return (model.rows - model.most_rows + request.rows) * model.full_s / model.useful_rows
        if deadline_s == inf:
            return 0.0
        if len(self.models) == 1 and request.rows <= model.useful_rows:
            at_most_s = begin_s + (model.rows // model.useful_rows + 2) * model.full_s
            if at_most_s <= deadline_s:
                return at_most_s - deadline_s
        return self._finish_s(model, request, begin_s) - deadline_s

    def _finish_s(self, model: BatchedModel, request: Waiting, begin_s: float) -> float:
        """When the request would be answered if everything before it is run in full batches."""
        before = 0
        for priority, rows in model.rows_by_priority.items():
            if priority <= request.priority:
                before += rows
        full = model.useful_rows
        if before < full:
            seconds = model.curve.seconds(before + request.rows)
        else:  # others will fill its batch
            seconds = before // full * model.full_s + max(model.full_s, model.curve.seconds(request.rows))
        seconds += model.margin_s(model.full_s) * sqrt(1 + before // full)  # errors of several batches add up, in part
        if len(self.models) > 1:
            for other in self.models.values():
                if other is not model and other.rows and _first_deadline_s(other) <= request.deadline_s:
                    seconds += other.rows * other.full_s / other.useful_rows
        return begin_s + seconds

    def _drop_late(self, model: BatchedModel, now_s: float, decision: Decision) -> None:
        """First in the queues: those whose deadline is over, and in a full queue those that can't be answered in time."""
        for queue in list(model.queues.values()):
            late: list[Waiting] = []
            rows = 0
            for request in queue.line:
                if request.taken or request.deadline_s == inf:
                    break
                is_crowded = model.rows - rows > model.useful_rows + request.rows
                if request.deadline_s > now_s + (model.curve.seconds(request.rows) if is_crowded else 0.0):
                    break
                late.append(request)
                rows += request.rows
            if late:
                del queue.line[: len(late)]
                model.left(queue, late, rows)
                retry_s = _SHORTEST_RETRY_S + model.rows * model.full_s / model.useful_rows
                decision.refused.extend(TurnedAway(request, retry_s) for request in late)

    def _why(self, model: BatchedModel, queue: ShapeQueue, now_s: float, free_s: float) -> tuple[Reason | None, float]:
        """Why a batch is sent now; None if it is better to wait, and until when."""
        curve, rows = model.curve, queue.rows
        if rows >= model.useful_rows or queue.line[0].alone:
            return Reason.FULL, now_s
        if free_s > now_s:  # it can still grow while the device computes
            return None, free_s
        if len(model.queues) > 1:
            return Reason.SHAPE, now_s
        if model.goal is None or any(other.rows for other in self.models.values() if other is not model):
            return Reason.IDLE, now_s
        need = model.arrivals.per_s(now_s)
        # while n rows are computed, need * fixed_s(n) come without making that longer: below that, waiting gains
        if curve.rows_per_s(rows) >= _HEADROOM * need or rows >= need * curve.fixed_s(rows):
            return Reason.IDLE, now_s
        dry_s = model.arrivals.last_s + _DRY / need
        if now_s >= dry_s:
            return Reason.IDLE, now_s
        deadline_s = min(request.deadline_s for request in queue.line)
        grown = curve.seconds(min(model.useful_rows, rows + max(1, int(need * max(0.0, deadline_s - now_s)))))
        latest_s = deadline_s - grown - model.margin_s(grown)
        return (Reason.DEADLINE, now_s) if now_s >= latest_s else (None, min(latest_s, dry_s))

    def _most_urgent(
        self, ready: list[tuple[BatchedModel, ShapeQueue, Reason]], now_s: float
    ) -> tuple[BatchedModel, ShapeQueue, Reason]:
        """The least slack, if somebody's deadline is in danger; otherwise the model that used the device least."""
        longest = max(_batch_s(model, queue) for model, queue, _ in ready)
        slacks = [queue.line[0].deadline_s - now_s - _batch_s(model, queue) for model, queue, _ in ready]
        least = min(range(len(ready)), key=slacks.__getitem__)
        if slacks[least] <= 2 * longest or all(slack < inf for slack in slacks):
            return ready[least]
        return min(ready, key=lambda one: one[0].used_s)

    def _taken(self, model: BatchedModel, queue: ShapeQueue, reason: Reason, now_s: float) -> ReadyBatch:
        first = queue.line[0]
        largest = model.curve.largest
        if first.rows > largest:  # larger than any batch: a piece of it
            start = first.taken
            rows = min(largest, first.rows - start)
            if start + rows == first.rows:
                del queue.line[0]
            first.taken += rows
            model.left(queue, [first], rows)
            return ReadyBatch(model, queue.sizes, [first], rows, Reason.FULL, start)
        most = min(largest, max(model.useful_rows, first.rows))
        if most < queue.rows or first.deadline_s < inf:
            in_time = model.curve.rows_within(first.deadline_s - now_s)
            if first.rows <= in_time < min(most, queue.rows) and model.curve.rows_per_s(in_time) >= model.arrivals.per_s(now_s):
                most, reason = in_time, Reason.DEADLINE
        most = max(first.rows, model.curve.thrifty_rows(min(most, queue.rows)))
        line = queue.line
        if len(line) == queue.rows and not first.alone and not line[-1].alone:  # all have one row
            rows = count = min(most, len(line))
        else:
            rows = count = 0
            while count < len(line) and rows + line[count].rows <= most and not (count and line[count].alone):
                rows += line[count].rows
                count += 1
                if first.alone:
                    break
        taken = line[:count]
        del line[:count]
        model.left(queue, taken, rows)
        return ReadyBatch(model, queue.sizes, taken, rows, reason)


def _order_s(request: Waiting) -> float:
    return request.order_s


def _first_deadline_s(model: BatchedModel) -> float:
    queue = model.first()
    return inf if queue is None else queue.line[0].deadline_s


def _batch_s(model: BatchedModel, queue: ShapeQueue) -> float:
    return model.curve.seconds(min(queue.rows, model.useful_rows))
