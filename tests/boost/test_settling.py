"""Where remedies are compared with the unmodified script: at the first step that repeats itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flatout.boost.settling import LATER, Repeat, chosen, noise_of, repeated, settle
from flatout.boost.trial import Told


def place(at: int, angle: float, why: str = "", agrees: bool = False) -> dict[str, Any]:
    sizes = [["angle", name, angle] for name in ("a", "b", "c")]
    return {"at": at, "agrees": agrees, "differs": "" if agrees else f"off by {angle}", "why": why, "sizes": sizes}


class Made:
    """Unmodified runs that are so far apart at each place, by precision."""

    def __init__(self, apart: dict[str, dict[int, dict[str, Any]]]) -> None:
        self.apart, self.asked = apart, list[tuple[tuple[int, ...], str]]()

    def repeats(self, asked: Sequence[Repeat]) -> list[Told]:
        self.asked += [(one.places, one.precision) for one in asked]
        return [Told(repeats=tuple(self.apart[one.precision][at] for at in one.places)) for one in asked]

    def keep_at(self, places: Sequence[int]) -> Told:
        return Told()

    def compare_at(self, place: int, noise: Any) -> None: ...


def settled(**apart: dict[int, dict[str, Any]]) -> tuple[Made, Any, str]:
    made = Made(apart)
    found, why = settle(made, repeated(made, (0,), apart, whole=True), lambda line: None, lambda: False)
    return made, found, why


def test_a_script_that_repeats_itself_is_compared_at_its_first_step() -> None:
    made, found, _ = settled(fp32={0: place(0, 0.0, agrees=True)})
    assert found.at == 0 and not found.was_chosen and made.asked == [((0,), "fp32")]


def test_a_later_step_is_compared_if_the_first_does_not_repeat_itself() -> None:
    late = {at: place(at, 0.01, agrees=True) for at in LATER}
    _, found, _ = settled(fp32={0: place(0, 0.3), **late})
    assert found.at == LATER[0] and found.was_chosen


def test_noise_is_measured_by_several_repeats_but_not_where_there_is_none() -> None:
    made, found, _ = settled(fp32={0: place(0, 0.1, agrees=True)})
    assert made.asked == [((0,), "fp32")] * 4 and found.noise()["fp32"]["repeats"] == 4
    made.apart["fp32"][0] = place(0, 0.2)  # one repeat was farther off
    more = found.with_more(made.repeats([Repeat((0,))])[0].repeats[0]).noise()["fp32"]
    assert {size for *_, size in more["sizes"]} == {0.2} and more["repeats"] == 5
    made, found, _ = settled(fp32={0: place(0, 0.001, agrees=True)})
    assert made.asked == [((0,), "fp32")] and found.noise()["fp32"]["repeats"] == 1


def test_every_precision_must_repeat_itself() -> None:
    plain = {at: place(at, 0.0, agrees=True) for at in (0, *LATER)}
    low = {0: place(0, 0.5, why="hidden"), LATER[0]: place(LATER[0], 0.4), LATER[1]: place(LATER[1], 0.1, agrees=True)}
    _, found, _ = settled(fp32=plain, bf16=low)
    assert found.at == LATER[1] and found.noise()["bf16"]["sizes"] == [["angle", name, 0.1] for name in ("a", "b", "c")]
    assert "fp32" not in found.noise()  # no noise at all


def test_the_first_step_stays_if_later_ones_are_hardly_better() -> None:
    _, found, _ = settled(fp32={0: place(0, 0.30), LATER[0]: place(LATER[0], 0.29), LATER[1]: place(LATER[1], 0.28)})
    assert found.at == 0


def test_a_place_where_nothing_can_be_told_is_not_chosen() -> None:
    noisy = {at: place(at, 1.2, why="two runs of the baseline differ too much") for at in (0, *LATER)}
    _, found, why = settled(fp32=noisy)
    assert found is None and why == "two runs of the baseline differ too much"
    places = noise_of(repeated(Made({"fp32": {**noisy, 12: place(12, 0.4)}}), (0, 12), ()))
    best = chosen(places)
    assert best is not None and best.at == 12
