"""A device and its arrivals in simulated time: what a batcher does with them, and two simpler rules to compare with."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from math import inf

import numpy as np

from flatout.base.latency_goal import LatencyGoal
from flatout.serving.asking import Reason
from flatout.serving.batching import BatchedModel, Batcher, Waiting
from flatout.serving.costs import CostCurve

ON_A_GPU = [(1, 0.001), (8, 0.0015), (64, 0.004), (256, 0.014)]  # rows, seconds


@dataclass
class Answer:
    request: Waiting
    at_s: float
    refused: bool = False
    reason: Reason = Reason.NONE
    batch_rows: int = 0
    retry_after_s: float = 0.0

    @property
    def in_time(self) -> bool:
        return not self.refused and self.at_s <= self.request.deadline_s + 1e-9


@dataclass
class Simulated:
    answers: list[Answer] = field(default_factory=list)
    busy_s: float = 0.0
    refused_while_idle: int = 0

    @property
    def good(self) -> int:
        return sum(answer.in_time for answer in self.answers)

    def latencies(self) -> np.ndarray:
        return np.array([answer.at_s - answer.request.arrival_s for answer in self.answers if not answer.refused])


def model(
    number: int = 0, points: list[tuple[int, float]] | None = None, goal: str | None = None, name: str = "one"
) -> BatchedModel:
    return BatchedModel(number, name, CostCurve(points or ON_A_GPU), None if goal is None else LatencyGoal.parse(goal))


def poisson(draw: np.random.Generator, per_s: float, seconds: float, number: int = 0, rows: Callable[[], int] = lambda: 1,
            priority: Callable[[], int] = lambda: 0, begin_s: float = 100.0) -> list[Waiting]:  # fmt: skip
    times = begin_s + np.cumsum(draw.exponential(1 / per_s, int(per_s * seconds)))
    return [Waiting(place, number, rows(), float(at_s), 0.0, priority()) for place, at_s in enumerate(times)]


def simulate(
    models: list[BatchedModel],
    arrivals: Iterable[Waiting],
    noise: Callable[[], float] = lambda: 1.0,
    again: Callable[[Answer], Waiting | None] = lambda answer: None,
    truth: list[tuple[int, float]] | None = None,
) -> Simulated:
    """The batcher on one device. `again` gives the next request of a client that waits for its answers; batches cost what
    `truth` says, or what the models expect."""
    batcher = Batcher(models)
    true_cost = {one.number: CostCurve(truth or one.curve.points()) for one in models}
    found = Simulated()
    count = itertools.count()
    coming = [(request.arrival_s, next(count), request) for request in arrivals]
    heapq.heapify(coming)
    now_s, free_s = (coming[0][0], 0.0) if coming else (0.0, 0.0)

    def answered(answer: Answer) -> None:
        found.answers.append(answer)
        follower = again(answer)
        if follower is not None:
            heapq.heappush(coming, (follower.arrival_s, next(count), follower))

    running = None
    while coming or batcher.rows or running is not None:
        if running is not None and free_s <= now_s:
            batch, took_s = running
            running = None
            batch.model.took(batch.rows, took_s)
            for request in batch.requests:
                request.left -= min(batch.rows, request.rows)
                if not request.left:
                    answered(Answer(request, now_s, False, batch.reason, batch.rows))
        while coming and coming[0][0] <= now_s:
            idle = running is None and not batcher.rows
            for refusal in batcher.arrive([heapq.heappop(coming)[2]], now_s, free_s):
                found.refused_while_idle += idle
                answered(Answer(refusal.request, now_s, True, retry_after_s=refusal.retry_after_s))
        until_s = inf
        if running is None and batcher.rows:
            decision = batcher.next(now_s, free_s)
            for refusal in decision.refused:
                answered(Answer(refusal.request, now_s, True, retry_after_s=refusal.retry_after_s))
            until_s = decision.until_s
            if decision.batch is not None:
                took_s = true_cost[decision.batch.model.number].seconds(decision.batch.rows) * noise()
                running, free_s = (decision.batch, took_s), now_s + took_s
                found.busy_s += took_s
        times = [free_s if running is not None else inf, coming[0][0] if coming else inf, until_s]
        if min(times) < inf:
            now_s = max(min(times), now_s)
        elif batcher.rows:
            raise AssertionError("requests wait, and nothing will ever be decided")
    return found


def simple_rule(points: list[tuple[int, float]], arrivals: list[Waiting], goal_s: float, delay_s: float, most: int,
                noise: Callable[[], float] = lambda: 1.0) -> int:  # fmt: skip
    """How many are in time if a batch goes when it is full or its first request has waited `delay_s`; 0 is greedy."""
    curve, good, free_s = CostCurve(points), 0, 0.0
    place = 0
    while place < len(arrivals):
        begin_s = max(free_s, arrivals[place].arrival_s)
        full = arrivals[place + most - 1].arrival_s if place + most <= len(arrivals) else inf
        begin_s = max(begin_s, min(arrivals[place].arrival_s + delay_s, full))
        end = place
        while end < len(arrivals) and end - place < most and arrivals[end].arrival_s <= begin_s:
            end += 1
        free_s = begin_s + curve.seconds(end - place) * noise()
        good += sum(free_s <= one.arrival_s + goal_s for one in arrivals[place:end])
        place = end
    return good
