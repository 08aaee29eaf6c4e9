"""Axes of a study's pictures: of a parameter on its own scale, of scores, and colours by rank."""

from __future__ import annotations

from collections.abc import Sequence

from flatout.base.svg import RANKS, Axis, Tick, linear, logarithmic
from flatout.tuning.space.domains import Choices, Domain, Mixture, Range
from flatout.tuning.views.history import StudyHistory, TrialLine
from flatout.tuning.views.words import value_text

_CUT = 0.85  # the share of scores that are always inside; worse ones are drawn at the edge if they would squeeze these
_ROOM = 1.6
_MOST = 300  # trials in a picture


def value_ticks(domain: Domain, most: int = 5) -> list[Tick]:
    """Labels at the places where `unit_of` puts the values."""
    if isinstance(domain, Range):
        return _range_ticks(domain, most)
    if isinstance(domain, Choices):
        return [((place + 0.5) / domain.count, value_text(value, 12)) for place, value in enumerate(domain.values)]
    if isinstance(domain, Mixture):
        found: list[Tick] = []
        for part, begin, end in domain.shares():
            found += [(begin + place * (end - begin), label) for place, label in value_ticks(part, most - 1)]
        return found
    return []


def _range_ticks(domain: Range, most: int) -> list[Tick]:
    axis = logarithmic(domain.low, domain.high) if domain.log else linear(domain.low, domain.high, most)
    values = [float(label) for _, label in axis.ticks]
    if domain.whole:
        values = sorted({round(value) for value in values if domain.low <= round(value) <= domain.high})
    placed = [(domain.unit_of(value), value) for value in values]
    return [(unit, f"{value:g}") for unit, value in placed if unit is not None]


def score_axis(history: StudyHistory, scores: Sequence[float]) -> tuple[Axis, bool]:
    """And whether some scores are so bad that they are drawn at the edge."""
    ordered = sorted(scores, reverse=history.higher_is_better)
    best, worst, inside = ordered[0], ordered[-1], ordered[min(int(_CUT * len(ordered)), len(ordered) - 1)]
    cut = abs(worst - best) > 2 * _ROOM * abs(inside - best) > 0
    edge = best + _ROOM * (inside - best) if cut else worst
    room = 0.04 * abs(best - edge)
    return linear(min(best, edge) - room, max(best, edge) + room), cut


def thinned(trials: Sequence[TrialLine]) -> tuple[list[TrialLine], str]:
    """At most 300 trials of some in order, the first among them, and a sentence if some are left out: a page stays small."""
    if len(trials) <= _MOST:
        return list(trials), ""
    places = [place * len(trials) // _MOST for place in range(_MOST)]
    return [trials[place] for place in places], f" {_MOST} of {len(trials):,} trials are drawn, from the best to the worst."


def ranks(history: StudyHistory, trials: Sequence[TrialLine], step: int) -> dict[int, int]:
    """By the number of the trial: its colour, from 0, the worst scores, to RANKS - 1, the best."""
    ordered = sorted(trials, key=lambda trial: trial.scores[step], reverse=not history.higher_is_better)
    last = max(len(ordered) - 1, 1)
    return {trial.number: min(place * RANKS // last, RANKS - 1) for place, trial in enumerate(ordered)}
