"""Every answer is noted: in the counters that all fronts share, and in the access log."""

from __future__ import annotations

from collections.abc import Mapping

from flatout.serving.access_log import AccessLog
from flatout.serving.canary.tally import add_requests
from flatout.serving.counters import FrontTally, SharedCounters
from flatout.serving.front.exchange import CANARY, INSTEAD, STABLE, UNTIMED
from flatout.serving.front.watching import AnsweredRequest, ModelStatistics, spent_times
from flatout.serving.one_of_each_batch import OneOfEachBatch

_MOST_PENDING = 2000


class SharedWatching:
    """`places` says where the counters of a model are. Requests are gathered and counted together by `flush`."""

    def __init__(self, counters: SharedCounters, slot: int, log: AccessLog | None) -> None:
        self._counters, self._slot, self._log = counters, slot, log
        self.arms = counters.arms(slot)
        self.places: Mapping[str, int] = {}
        self.batches: Mapping[str, Mapping[str, float]] = {}  # by model, what executors say
        self._tallies: dict[int, FrontTally] = {}
        self._pending: list[AnsweredRequest] = []
        self._alone = {arm: OneOfEachBatch() for arm in (STABLE, CANARY)}

    def answered(self, request: AnsweredRequest) -> None:
        pending = self._pending
        pending.append(request)
        if len(pending) >= _MOST_PENDING:
            self.flush()

    def flush(self) -> None:
        pending, self._pending = self._pending, []
        if not pending:
            return
        by_place: dict[int, list[AnsweredRequest]] = {}
        for request in pending:
            asks = request.model is not None and request.method == b"POST"  # others ask for its metadata
            place = self.places.get(request.model.name, 0) if asks and request.model is not None else 0
            by_place.setdefault(place, []).append(request)
        for place, some in by_place.items():
            tally = self._tallies.get(place)
            if tally is None:
                tally = self._tallies[place] = self._counters.tally(self._slot, place)
            tally.add([one.status_code for one in some], sum([one.rows for one in some]), spent_times(some))
        judged = [one for one in pending if one.arm and not 400 <= one.status_code < 500]  # those are the client's mistakes
        if judged:
            self._count_arms(judged)
        if self._log is not None:
            self._log.write(pending)

    def _count_arms(self, judged: list[AnsweredRequest]) -> None:
        """What the stable version answered instead of the canary is a failure of the canary."""
        for arm, tally in ((STABLE, self.arms[0]), (UNTIMED, self.arms[0]), (CANARY, self.arms[1]), (INSTEAD, self.arms[1])):
            some = [one for one in judged if one.arm == arm]
            well = [one for one in some if arm != INSTEAD and one.status_code < 500]
            if some:
                timed = self._alone[arm].chosen(well) if arm in self._alone else [False] * len(well)
                taken = [one.total_s for one, is_timed in zip(well, timed, strict=True) if is_timed]
                add_requests(tally, len(some), len(some) - len(well), taken)

    def statistics(self, name: str, version: str) -> ModelStatistics:
        """Of all versions of a model together, over all fronts."""
        self.flush()
        summed = self._counters.summed(self.places.get(name, 0))
        ran = self.batches.get(name, {})
        return ModelStatistics(
            requests=summed.count("answered"),
            failed=summed.requests - summed.count("answered"),
            rows=summed.rows,
            batches_run=int(ran.get("batches", 0)),
            total_s=summed.sum_s("total"),
            queue_s=summed.sum_s("queue"),
            decode_s=summed.sum_s("decode") + summed.sum_s("parse"),
            compute_s=summed.sum_s("compute"),
            encode_s=summed.sum_s("encode"),
            last_ms=summed.last_ms,
        )
