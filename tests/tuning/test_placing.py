"""Which process trains what: the longest first, no longer than needed, and where the weights are."""

from __future__ import annotations

from flatout.tuning.crew.placing import Homes, TrialWork, placed
from flatout.tuning.crew.queues import Queues
from flatout.tuning.training.layout import SERIAL, STACKED, Layout

NOWHERE = Homes({}, frozenset({0, 1, 2}))


def work(count: int, first: int = 0, start: int = 0, kind: str = STACKED, rate: float = 100.0) -> TrialWork:
    trials = [(number, ()) for number in range(first, first + count)]
    return TrialWork(trials, start, start + 10, Layout(kind, width=16, rates={"measured": rate}))


def numbers(found: dict[int, list[TrialWork]]) -> dict[int, list[list[int]]]:
    return {place: [unit.numbers for unit in units] for place, units in found.items()}


def test_one_place_trains_whole_stacks_in_order() -> None:
    found = numbers(placed([work(20), work(3, 50, kind=SERIAL)], [0], NOWHERE))
    assert sorted(found[0]) == [[*range(16)], [16, 17, 18, 19], [50, 51, 52]]


def test_a_single_group_is_divided_among_all() -> None:
    found = numbers(placed([work(12)], [0, 1, 2], NOWHERE))
    assert sorted(unit for units in found.values() for unit in units) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]
    assert all(len(units) == 1 for units in found.values())


def test_equal_groups_go_side_by_side_and_stay_whole() -> None:
    assert numbers(placed([work(8), work(8, 20)], [0, 1], NOWHERE)) == {0: [[*range(8)]], 1: [[*range(20, 28)]]}


def test_a_slow_group_gets_more_places() -> None:
    found = placed([work(8, rate=10.0), work(8, 20)], [0, 1, 2], NOWHERE)
    slow = [place for place, units in found.items() if any(unit.numbers[0] < 20 for unit in units)]
    assert len(slow) == 3


def test_the_longest_come_first() -> None:
    works = [work(1, number, kind=SERIAL, rate=rate) for number, rate in enumerate([50.0, 2.0, 2.0, 1.0])]
    assert numbers(placed(works, [0, 1], NOWHERE)) == {0: [[3], [0]], 1: [[1], [2]]}


def test_trials_stay_where_their_weights_are() -> None:
    homes = {number: number % 2 for number in range(8)}
    found = numbers(placed([work(8, start=10)], [0, 1], Homes(homes, frozenset({0, 1}))))
    assert found == {0: [[0, 2, 4, 6]], 1: [[1, 3, 5, 7]]}


def test_weights_that_can_not_be_moved_are_waited_for() -> None:
    of = dict.fromkeys(range(4), 1)
    one = work(1, start=90, kind=SERIAL)
    assert placed([one], [0, 1], Homes(of, frozenset()))[1] == [one]
    both = [work(1, number, start=0 if number > 1 else 90, kind=SERIAL) for number in range(4)]
    assert {unit.numbers[0] for unit in placed(both, [0, 1], Homes({0: 1, 1: 1}, frozenset()))[1]} >= {0, 1}


def test_who_is_done_takes_over_what_nobody_has_begun() -> None:
    fresh, going = work(1, 1, kind=SERIAL), work(1, 2, start=10, kind=SERIAL)
    queues = Queues({0: [work(1, 0, kind=SERIAL)], 1: [going, fresh, going]})
    assert [queues.next(0).numbers for _ in range(2)] == [[0], [1]]  # type: ignore[union-attr]
    assert queues.next(0) is None  # the others' weights are elsewhere
    unit = queues.next(1)
    assert unit == going
    queues.back(1, going)
    assert queues.rest() == [going, going]
