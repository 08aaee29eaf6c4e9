"""Chooses the step at which remedies are compared with the unmodified script, by how far unmodified runs are apart there.

In a deep network with random weights, rounding alone changes the first gradients, so no remedy could be told from a bug.
Weights that have been trained for a few steps are steadier.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from flatout.boost.trial import Told
from flatout.measure.proof import counts
from flatout.measure.step_noise import StepNoise

LATER = (12, 36)  # steps
_FALLS = 0.7  # of the noise at the place before: otherwise the noise has stopped falling
PLAIN = "fp32"
_MORE = 3  # repeats where there is noise: with one, every tenth harmless remedy was outside of three times what was measured


@dataclass(frozen=True)
class Repeat:
    """An unmodified run that is compared with the reference at these places and is not timed."""

    places: tuple[int, ...]
    precision: str = PLAIN
    shaken: bool = False  # each weight is changed by as much as rounding to the precision can
    whole: bool = False  # with all steps of a trial, not only those that are compared


class RepeatTrials(Protocol):
    def repeats(self, asked: Sequence[Repeat]) -> list[Told]:
        """They may run at the same time."""
        ...

    def keep_at(self, places: Sequence[int]) -> Told:
        """An unmodified run, which becomes the reference at these places."""
        ...

    def compare_at(self, place: int, noise: Mapping[str, Any]) -> None: ...


@dataclass(frozen=True)
class PlaceNoise:
    """Differences of unmodified runs at one place, by precision: plainly repeated, or with weights changed by rounding."""

    at: int
    found: Mapping[str, Mapping[str, Any]]
    was_chosen: bool = False  # from several, which were measured

    @property
    def agrees(self) -> bool:
        return all(one["agrees"] for one in self.found.values())

    @property
    def why_not(self) -> str:
        """Why nothing can be proven here."""
        return str(self.found[PLAIN]["why"])

    @property
    def differs(self) -> str:
        return next((str(one["differs"]) for one in self.found.values() if not one["agrees"]), "")

    @property
    def lost(self) -> int:
        """Precisions in which nothing can be proven."""
        return sum(bool(one["why"]) for one in self.found.values())

    @property
    def angle(self) -> float:
        return sum(StepNoise.from_list(one["sizes"]).usual("angle") for one in self.found.values())

    def noise(self) -> dict[str, Any]:
        """Only where there is any."""
        told = {name: {"sizes": one["sizes"], "repeats": one.get("repeats", 1)} for name, one in self.found.items()}
        return {name: one for name, one in told.items() if any(size for *_, size in one["sizes"])}

    @property
    def is_noisy(self) -> bool:
        return counts(StepNoise.from_list(self.found[PLAIN]["sizes"]), PLAIN)

    def with_more(self, again: Mapping[str, Any]) -> PlaceNoise:
        """`again`: one more repeat of the unmodified script."""
        known = self.found[PLAIN]
        both = StepNoise.from_list(known["sizes"], known.get("repeats", 1)).with_more(StepNoise.from_list(again["sizes"]))
        more = {**known, "sizes": both.to_list(), "repeats": both.repeats}
        return replace(self, found={**self.found, PLAIN: more})


def repeated(tries: RepeatTrials, places: Sequence[int], precisions: Iterable[str], *, whole: bool = False) -> dict[str, Told]:
    """The unmodified script by precision: plainly, with all its steps if `whole`, and with weights changed by rounding."""
    shaken = [one for one in precisions if one != PLAIN]
    asked = [Repeat(tuple(places), whole=whole), *(Repeat(tuple(places), one, shaken=True) for one in shaken)]
    return dict(zip((PLAIN, *shaken), tries.repeats(asked), strict=True))


def noise_of(told: Mapping[str, Told]) -> list[PlaceNoise]:
    found: dict[int, dict[str, Mapping[str, Any]]] = {}
    for precision, one in told.items():
        for place in one.repeats:
            found.setdefault(place["at"], {})[precision] = place
    return [PlaceNoise(at, one) for at, one in sorted(found.items()) if PLAIN in one]


def chosen(places: Sequence[PlaceNoise]) -> PlaceNoise | None:
    """The first place where unmodified runs agree; else the one with the least noise, the first if others are hardly better."""
    usable = [one for one in places if not one.why_not]
    if agreeing := [one for one in usable if one.agrees]:
        return agreeing[0]
    best: PlaceNoise | None = None
    for one in usable:
        if best is None or one.lost < best.lost or (one.lost == best.lost and one.angle < _FALLS * best.angle):
            best = one
    return best


def settle(
    tries: RepeatTrials, told: Mapping[str, Told], say: Callable[[str], None], is_over: Callable[[], bool]
) -> tuple[PlaceNoise | None, str]:
    """The place to compare at, and why there is none. `told`: what repeats at the first step told, by precision."""
    place, why = _settled(tries, told, say, is_over)
    if place is not None and place.is_noisy and not is_over():
        say(f"unmodified runs are not identical; measuring their noise with {_MORE} more")
        for more in tries.repeats([Repeat((place.at,))] * _MORE):
            if more.repeats and more.repeats[0]["sizes"]:
                place = place.with_more(more.repeats[0])
    return place, why


def _settled(
    tries: RepeatTrials, told: Mapping[str, Told], say: Callable[[str], None], is_over: Callable[[], bool]
) -> tuple[PlaceNoise | None, str]:
    first = noise_of(told)
    if not first:
        return None, "its first step could not be compared"
    if first[0].agrees or is_over():
        return (None, first[0].why_not) if first[0].why_not else (first[0], "")
    say(f"two unmodified runs differ in the first step ({first[0].differs}); measuring later steps")
    later: list[PlaceNoise] = []
    if not tries.keep_at(LATER).failure:
        later = noise_of(repeated(tries, LATER, told))
    place = chosen([*first, *later])
    return (None, first[0].why_not) if place is None else (replace(place, was_chosen=True), "")
