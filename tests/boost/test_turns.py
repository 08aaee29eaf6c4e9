"""Which steps a turn has, told by what both trials took until then."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from flatout.boost.trial import TrialRequest
from flatout.boost.trying import Trials
from flatout.doctor.script import Script

TURN_S = 0.06


@pytest.fixture
def trials(tmp_path: Path) -> Trials:
    forks: Any = None  # nothing is run
    return Trials(forks, Script("train.py"), tmp_path, 40, "overlay")


def asked(folder: Path, name: str, turns: list[tuple[float, int]], **more: Any) -> TrialRequest:
    place = folder / name
    place.mkdir()
    (place / "turns.txt").write_text("".join(f"{step_s} {step}\n" for step_s, step in turns))
    return TrialRequest(
        "train.py", (), False, (), 40, 0, str(place), str(place / "answer.json"), "overlay", turn_s=TURN_S, **more
    )


def until(trials: Trials, one: TrialRequest, other: TrialRequest) -> int | None:
    trials._say_until(one, other)
    return int(one.until.read_text()) if one.until.exists() else None


def test_the_first_turn_of_all_ends_by_the_clock(trials: Trials, tmp_path: Path) -> None:
    assert until(trials, asked(tmp_path, "mine", []), asked(tmp_path, "beside", [])) is None


def test_the_second_of_two_ends_where_the_first_did(trials: Trials, tmp_path: Path) -> None:
    mine, beside = asked(tmp_path, "mine", [(0.001, 30)]), asked(tmp_path, "beside", [(0.004, 30), (0.004, 47)])
    assert until(trials, mine, beside) == 47


def test_a_turn_is_so_long_that_the_faster_one_has_as_much_less_time_as_the_slower_has_more(
    trials: Trials, tmp_path: Path
) -> None:
    mine, beside = asked(tmp_path, "mine", [(0.001, 30)]), asked(tmp_path, "beside", [(0.004, 30)])
    assert until(trials, mine, beside) == 30 + TURN_S / 0.002


def test_what_comes_at_the_end_of_a_pass_counts_for_how_long_a_turn_is(trials: Trials, tmp_path: Path) -> None:
    turns = [(0.001, 10), (0.001, 20), (0.001, 30), (0.037, 40)]
    assert until(trials, asked(tmp_path, "mine", turns), asked(tmp_path, "beside", turns)) == 40 + TURN_S / 0.01


def test_a_turn_has_as_many_steps_as_can_be_timed_at_least(trials: Trials, tmp_path: Path) -> None:
    mine = asked(tmp_path, "mine", [(1.0, 30)], least=6, filling=2)
    assert until(trials, mine, asked(tmp_path, "beside", [(1.0, 30)])) == 38


def test_where_one_ended_in_its_first_turn_the_other_goes_to_its_end(trials: Trials, tmp_path: Path) -> None:
    assert until(trials, asked(tmp_path, "mine", [(0.001, 30)]), asked(tmp_path, "beside", [])) is None


@pytest.mark.parametrize(("within_s", "took_s", "ends"), [(60.0, 9.0, False), (60.0, 11.0, True), (600.0, 29.0, False)])
def test_turns_that_tell_nothing_take_a_part_of_the_time_for_all_trials(
    within_s: float, took_s: float, ends: bool, tmp_path: Path
) -> None:
    forks: Any = None
    trials = Trials(forks, Script("train.py"), tmp_path, 40, "overlay", within_s=within_s)
    noisy = [(1.0 + 0.9 * (turn % 2), 20 + turn) for turn in range(17)]
    both = [asked(tmp_path, name, noisy[at:][:16]) for at, name in enumerate(("mine", "beside"))]
    assert trials._is_clear(both, 0.1, took_s) is ends
