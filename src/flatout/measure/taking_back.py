"""Drops changes that were kept before: those meant to help a change that was rejected, and those not proven by training."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Generic, Protocol

from flatout.measure.loss_proof import LossVerdict
from flatout.measure.receipt import Entry
from flatout.measure.standing import ResultT, Standing, StateT
from flatout.measure.trial_record import TrialRecord

_IN_VAIN = "dropped: no speed-up alone, and the setting it was meant to help was rejected"
NOT_PROVEN = "not proven: training did not show the same loss"


class Reversible(Protocol[StateT, ResultT]):
    """How a client undoes a change."""

    def is_in(self, entry: Entry, state: StateT) -> bool: ...

    def without(self, entry: Entry, standing: Standing[StateT, ResultT]) -> Standing[StateT, ResultT]:
        """Measure without the change."""
        ...

    def prove_state(self, standing: Standing[StateT, ResultT], proven: Standing[StateT, ResultT]) -> LossVerdict: ...


class TakingBack(Generic[StateT, ResultT]):
    def __init__(
        self,
        record: TrialRecord,
        client: Reversible[StateT, ResultT],
        needs: Mapping[str, Collection[str]],
        margin: float,
    ) -> None:
        """`needs`: for each change kept only to help others, the names of those others."""
        self._record, self._client, self._needs, self._margin = record, client, needs, margin

    def proven(
        self, standing: Standing[StateT, ResultT], proven: Standing[StateT, ResultT]
    ) -> tuple[Standing[StateT, ResultT], LossVerdict | None]:
        """`standing` and its proof by training. If the proof fails: `proven`, and changes kept since then are dropped."""
        if standing.state == proven.state:
            return proven, None
        verdict = self._client.prove_state(standing, proven)
        if verdict["passed"]:
            return standing, verdict
        for entry in self._record.kept:
            if not self._client.is_in(entry, proven.state):
                self._record.take_back(entry, NOT_PROVEN)
        return proven, None

    def without_idle(
        self, standing: Standing[StateT, ResultT], proven: Standing[StateT, ResultT]
    ) -> tuple[Standing[StateT, ResultT], LossVerdict | None]:
        """Drop changes that turned out useless, if the rest is proven without them. Ctrl-C leaves the record unchanged."""
        before = self._record.copy()
        idle: list[Entry] = []
        try:
            while (entry := self._record.kept_in_vain(self._needs, self._margin)) is not None:
                idle.append(entry)
                self._record.take_back(entry, _IN_VAIN)
                standing = self._client.without(entry, standing)
            final, verdict = self.proven(standing, proven)
        except KeyboardInterrupt:
            self._record.restore(before)
            raise
        self._record.keep_again(one for one in idle if self._client.is_in(one, final.state))
        return final, verdict
