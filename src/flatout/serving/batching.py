"""When which requests are run together. Decisions only: the time is given, so arrivals can be simulated.

batcher = Batcher([BatchedModel(0, "churn", CostCurve([(1, 0.001), (64, 0.004)]), LatencyGoal.parse("p99 50 ms"))])
refusal = batcher.arrive(request, now_s, free_s)      # None: it waits in its queue
decision = batcher.next(now_s, free_s)                # a batch to send now, or until when to wait
batch.model.took(batch.rows, seconds)                 # the cost of batches is revised
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from math import inf
from typing import Any

from flatout.serving.arrivals import ArrivalRate
from flatout.serving.asking import Reason
from flatout.serving.costs import CostCurve
from flatout.serving.goal import LatencyGoal

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

    __slots__ = (
        "alone", "arrival_s", "deadline_s", "front", "id", "left", "model", "offset", "order_s", "power", "priority", "rows",
        "sizes", "taken", "timing",
    )  # fmt: skip

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
        self.id, self.model, self.rows, self.sizes = id, model, rows, sizes
        self.arrival_s, self.deadline_s, self.priority = arrival_s, deadline_s, priority
        self.front, self.offset, self.power = front, offset, power
        self.order_s = arrival_s
        self.taken = 0  # rows that are in a batch
        self.left = rows  # rows without an answer
        self.alone = False  # it is run in a batch of its own, since a batch with others failed
        self.timing: Any = None  # of its batches so far, if it has several

    def __lt__(self, other: Waiting) -> bool:
        return bool(self.order_s < other.order_s)


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
class Refusal:
    request: Waiting
    retry_after_s: float


@dataclass(slots=True)
class Decision:
    """`batch` is to be sent now. Without one, nothing can be decided before `until_s`, or before something arrives."""

    batch: ReadyBatch | None = None
    until_s: float = inf
    refused: list[Refusal] = field(default_factory=list)


class ShapeQueue:
    """Requests of one model whose rows have the same shape, in the order in which they are run."""

    __slots__ = ("heap", "rows", "sizes")

    def __init__(self, sizes: Sizes) -> None:
        self.sizes = sizes
        self.heap: list[Waiting] = []
        self.rows = 0

    def push(self, request: Waiting) -> None:
        heappush(self.heap, request)
        self.rows += request.rows - request.taken


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
        self.revise()

    def revise(self) -> None:
        """`useful_rows` are those of a full batch: more would not be faster, or two batches one after the other would take
        longer than the goal."""
        self.useful_rows = self.curve.full_rows
        if self.goal is not None:
            in_time = self.curve.rows_within(_OF_GOAL * self.goal.seconds / 2)
            self.useful_rows = min(self.useful_rows, max(1, in_time))

    def first(self) -> ShapeQueue | None:
        """The queue whose first request is next in order."""
        if len(self.queues) == 1:
            return next(iter(self.queues.values()))
        return min(self.queues.values(), key=lambda queue: queue.heap[0].order_s, default=None)

    def add(self, request: Waiting) -> None:
        queue = self.queues.get(request.sizes)
        if queue is None:
            queue = self.queues[request.sizes] = ShapeQueue(request.sizes)
        queue.push(request)
        rows = request.rows - request.taken
        self.rows += rows
        self.rows_by_priority[request.priority] = self.rows_by_priority.get(request.priority, 0) + rows

    def left(self, queue: ShapeQueue, request: Waiting, rows: int) -> None:
        """`rows` of the request are no longer in the queue."""
        queue.rows -= rows
        self.rows -= rows
        self.rows_by_priority[request.priority] -= rows
        if not queue.heap:
            self.queues.pop(queue.sizes, None)
            if not self.rows:
                self.rows_by_priority.clear()

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
        return sum(model.rows for model in self.models.values())

    def arrive(self, request: Waiting, now_s: float, free_s: float) -> Refusal | None:
        """`free_s` is when the device will have finished all that was sent to it."""
        model = self.models[request.model]
        model.arrivals.add(request.rows, now_s)
        if request.deadline_s == 0.0:
            request.deadline_s = inf if model.goal is None else request.arrival_s + _OF_GOAL * model.goal.seconds
        request.order_s = min(request.deadline_s, request.arrival_s + _PATIENT_S) + _LEVEL_S * request.priority
        if free_s > now_s or self._anything_waits():
            finish_s = self._finish_s(model, request, now_s, free_s)
            late_s = finish_s - min(request.deadline_s, now_s + _LONGEST_QUEUE_S if model.goal is None else inf)
            if late_s > 0:
                return Refusal(request, max(_SHORTEST_RETRY_S, late_s))
        if not model.rows:  # the share of the device that it did not use is not saved for later
            busy = [other.used_s for other in self.models.values() if other.rows]
            model.used_s = max([model.used_s, *([min(busy)] if busy else [])])
        model.add(request)
        return None

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
        if queue is not None and request in queue.heap:
            queue.heap.remove(request)
            heapify(queue.heap)
            model.left(queue, request, request.rows - request.taken)

    def forget(self, front: object) -> None:
        """Requests of a front that is gone."""
        for model in self.models.values():
            for queue in list(model.queues.values()):
                gone = [request for request in queue.heap if request.front is front]
                queue.heap = [request for request in queue.heap if request.front is not front]
                heapify(queue.heap)
                for request in gone:
                    model.left(queue, request, request.rows - request.taken)

    def _anything_waits(self) -> bool:
        return any(model.rows for model in self.models.values())

    def _finish_s(self, model: BatchedModel, request: Waiting, now_s: float, free_s: float) -> float:
        """When the request would be answered if everything before it is run in full batches."""
        before = 0
        for priority, rows in model.rows_by_priority.items():
            if priority <= request.priority:
                before += rows
        full = model.useful_rows
        curve = model.curve
        seconds = before // full * curve.seconds(full) + curve.seconds(before % full + request.rows)
        if len(self.models) > 1:
            for other in self.models.values():
                if other is not model and other.rows and _first_deadline_s(other) <= request.deadline_s:
                    seconds += other.rows / other.curve.rows_per_s(other.useful_rows)
        return max(now_s, free_s) + seconds

    def _drop_late(self, model: BatchedModel, now_s: float, decision: Decision) -> None:
        """First in the queues: those whose deadline is over, and in a full queue those that can't be answered in time."""
        for queue in list(model.queues.values()):
            while queue.heap:
                request = queue.heap[0]
                if request.taken or request.deadline_s == inf:
                    break
                crowded = model.rows > model.useful_rows + request.rows
                if request.deadline_s > now_s + (model.curve.seconds(request.rows) if crowded else 0.0):
                    break
                heappop(queue.heap)
                model.left(queue, request, request.rows)
                decision.refused.append(
                    Refusal(request, _SHORTEST_RETRY_S + model.rows / model.curve.rows_per_s(model.useful_rows))
                )

    def _why(self, model: BatchedModel, queue: ShapeQueue, now_s: float, free_s: float) -> tuple[Reason | None, float]:
        """Why a batch is sent now; None if it is better to wait, and until when."""
        curve, rows = model.curve, queue.rows
        if rows >= model.useful_rows or queue.heap[0].alone:
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
        deadline_s = min(request.deadline_s for request in queue.heap)
        grown = curve.seconds(min(model.useful_rows, rows + max(1, int(need * max(0.0, deadline_s - now_s)))))
        latest_s = deadline_s - grown - model.margin_s(grown)
        return (Reason.DEADLINE, now_s) if now_s >= latest_s else (None, min(latest_s, dry_s))

    def _most_urgent(
        self, ready: list[tuple[BatchedModel, ShapeQueue, Reason]], now_s: float
    ) -> tuple[BatchedModel, ShapeQueue, Reason]:
        """The least slack, if somebody's deadline is in danger; otherwise the model that used the device least."""
        longest = max(_batch_s(model, queue) for model, queue, _ in ready)
        slacks = [queue.heap[0].deadline_s - now_s - _batch_s(model, queue) for model, queue, _ in ready]
        least = min(range(len(ready)), key=slacks.__getitem__)
        if slacks[least] <= 2 * longest or all(slack < inf for slack in slacks):
            return ready[least]
        return min(ready, key=lambda one: one[0].used_s)

    def _taken(self, model: BatchedModel, queue: ShapeQueue, reason: Reason, now_s: float) -> ReadyBatch:
        first = queue.heap[0]
        largest = model.curve.largest
        if first.rows > largest:  # larger than any batch: a piece of it
            start = first.taken
            rows = min(largest, first.rows - start)
            if start + rows == first.rows:
                heappop(queue.heap)
            first.taken += rows
            model.left(queue, first, rows)
            return ReadyBatch(model, queue.sizes, [first], rows, Reason.FULL, start)
        most = min(largest, max(model.useful_rows, first.rows))
        if most < queue.rows or first.deadline_s < inf:
            in_time = model.curve.rows_within(first.deadline_s - now_s)
            if first.rows <= in_time < min(most, queue.rows) and model.curve.rows_per_s(in_time) >= model.arrivals.per_s(now_s):
                most, reason = in_time, Reason.DEADLINE
        heap = queue.heap
        taken: list[Waiting] = []
        rows = 0
        while heap and rows + heap[0].rows <= most and not (heap[0].alone and taken):
            request = heappop(heap)
            rows += request.rows
            request.taken = request.rows
            taken.append(request)
            if request.alone:
                break
        for request in taken:
            model.left(queue, request, request.rows)
        return ReadyBatch(model, queue.sizes, taken, rows, reason)


def _first_deadline_s(model: BatchedModel) -> float:
    queue = model.first()
    return inf if queue is None else queue.heap[0].deadline_s


def _batch_s(model: BatchedModel, queue: ShapeQueue) -> float:
    return model.curve.seconds(min(queue.rows, model.useful_rows))
