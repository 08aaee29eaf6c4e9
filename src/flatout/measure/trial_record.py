"""The changes that a search tried, with their verdicts, in the order of the receipt. A kept change may be dropped later."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from flatout.measure.judging import Judgement, Rejection
from flatout.measure.receipt import KEPT, REJECTED, Entry
from flatout.measure.standing import TrialResult, median_s


@dataclass(frozen=True)
class Noted:
    entry: Entry
    rejection: Rejection | None = None


class TrialRecord:
    def __init__(self) -> None:
        self._noted: list[Noted] = []

    @property
    def entries(self) -> tuple[Entry, ...]:
        return tuple(one.entry for one in self._noted)

    @property
    def kept(self) -> list[Entry]:
        return [entry for entry in self.entries if entry.verdict == KEPT]

    def add(self, entry: Entry, rejection: Rejection | None = None) -> None:
        self._noted.append(Noted(entry, rejection))

    def add_instead(self, entry: Entry, rejection: Rejection | None = None) -> None:
        """Add this trial and remove earlier trials of the same change."""
        self._noted = [one for one in self._noted if not _is_of(one.entry, entry.name, entry.value)]
        self.add(entry, rejection)

    def of(self, name: str, value: Any) -> list[Noted]:
        """All trials of this change, oldest first."""
        return [one for one in self._noted if _is_of(one.entry, name, value)]

    def latest(self, name: str, value: Any) -> Noted | None:
        return next(reversed(self.of(name, value)), None)

    def kept_after(self, entry: Entry) -> set[str]:
        """Names of the changes kept after `entry`."""
        return {one.name for one in self.entries[self.entries.index(entry) + 1 :] if one.verdict == KEPT}

    def take_back(self, entry: Entry, why: str) -> None:
        place = self.entries.index(entry)
        self._noted[place] = Noted(replace(entry, verdict=REJECTED, why=why), Rejection.UNPROVEN)

    def take_all_back(self, why: str) -> None:
        for entry in self.kept:
            self.take_back(entry, why)

    def kept_in_vain(self, needs: Mapping[str, Collection[str]], margin: float) -> Entry | None:
        """The first kept change that gained nothing and whose purpose failed. `needs`: for each change kept to help others, the
        names of those others; it is useless if none of them was kept after it."""
        for entry in self.kept:
            gained = any(low is not None and low * (1 - margin) > 1 for low in (entry.low, entry.less_low))
            if needs.get(entry.name) and not gained and not self.kept_after(entry).intersection(needs[entry.name]):
                return entry
        return None

    def keep_again(self, entries: Iterable[Entry]) -> None:
        """Keep changes again that were dropped but turned out to be needed."""
        for entry in entries:
            taken = next(one for one in reversed(self._noted) if _is_of(one.entry, entry.name, entry.value))
            self._noted[self._noted.index(taken)] = Noted(entry)

    def copy(self) -> list[Noted]:
        return list(self._noted)

    def restore(self, noted: list[Noted]) -> None:
        self._noted = list(noted)


def _is_of(entry: Entry, name: str, value: Any) -> bool:
    return (entry.name, str(entry.value)) == (name, str(value))


def entry_of(
    name: str, value: Any, instead_of: Any, result: TrialResult, judgement: Judgement, predicted: float | None = None
) -> Entry:
    """A trial as an entry of the receipt."""
    speed = judgement.speed
    return Entry(
        name=name,
        value=value,
        instead_of=instead_of,
        verdict=KEPT if judgement.kept else REJECTED,
        why=judgement.why,
        predicted=predicted,
        measured=None if speed is None else speed.ratio,
        low=None if speed is None else speed.low,
        high=None if speed is None else speed.high,
        n=0 if speed is None else speed.n,
        step_s=median_s(result.steps_s),
        against_s=median_s(result.against_s),
        first_s=result.first_s,
        peak_bytes=result.peak_bytes,
        check=result.check,
        took_s=result.took_s,
    )
