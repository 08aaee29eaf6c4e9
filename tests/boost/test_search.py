"""Which remedies are kept, on trials that were made up: never one that is not faster, not proven, or that failed."""

from __future__ import annotations

import random
import re
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from flatout.boost.remedies.remedy import Offer
from flatout.boost.search import RemedySearch
from flatout.boost.settling import Repeat
from flatout.boost.trial import Told
from flatout.measure.receipt import Receipt

GOOD = {"passed": True, "why": "one step agrees", "figures": {}}
SAME = {"at": 0, "agrees": True, "differs": "", "why": "", "sizes": []}


class Made:
    """Trials with given step times, losses and failures, by the names of the remedies in them."""

    def __init__(self, step_s: dict[str, float], wrong: dict[str, Told] | None = None, noise: float = 0.0) -> None:
        self.steps, self.by_turns = 40, False
        self.asked: list[tuple[str, ...]] = []
        self._step_s, self._wrong, self._noise = step_s, wrong or {}, noise
        self._draw = random.Random(0)

    def repeats(self, asked: Sequence[Repeat]) -> list[Told]:
        told = [self.attempt(()) if one.whole else Told() for one in asked]
        same = [tuple({**SAME, "at": at} for at in one.places) for one in asked]
        return [replace(one, repeats=found) for one, found in zip(told, same, strict=True)]

    def keep_at(self, places: Sequence[int]) -> Told:
        return Told()

    def compare_at(self, place: int, noise: Any) -> None:
        self.compared_at = place

    def attempt(self, remedies: Sequence[tuple[str, Any]], **how: Any) -> Told:
        names = tuple(name for name, _ in remedies)
        self.asked.append(names)
        if names and names[-1] in self._wrong and len(set(names)) == len(names):
            return self._wrong[names[-1]]
        factor = 1.0
        for name in names:
            factor *= self._step_s.get(name, 1.0)
        losses = tuple(2.0 - 0.01 * step + self._draw.gauss(0, self._noise) for step in range(self.steps))
        steps_s = tuple(0.02 * factor * self._draw.uniform(0.99, 1.01) for _ in range(30))
        return Told(steps_s=steps_s, losses=losses, check=None if how.get("keep") else GOOD, repeats=(SAME,))


def searched(made: Made, *offers: str) -> tuple[RemedySearch, Receipt]:
    search = RemedySearch(made, [Offer(name, "on", "off", 2.0 - 0.1 * at) for at, name in enumerate(offers)], lambda line: None)
    return search, search.run("a machine", {}, "today")


def verdicts(receipt: Receipt) -> dict[str, str]:
    return {entry.name: entry.verdict for entry in receipt.entries}


def test_gains_add_up_and_what_gains_nothing_is_left_out() -> None:
    search, receipt = searched(Made({"autocast": 0.5, "tf32": 1.0, "compile": 0.8}), "autocast", "tf32", "compile")
    assert [name for name, _ in search.kept] == ["autocast", "compile"]
    assert verdicts(receipt) == {"autocast": "kept", "tf32": "rejected", "compile": "kept", "all together": "kept"}
    assert receipt.gain is not None and 2.4 < receipt.gain < 2.6


def test_a_remedy_that_hangs_or_crashes_is_rejected_and_the_search_goes_on() -> None:
    wrong = {"compile": Told("hung", "no answer within 5 min"), "autocast": Told("crashed", "killed by SIGSEGV")}
    search, receipt = searched(Made({"fused_optimizer": 0.7}, wrong), "autocast", "compile", "fused_optimizer")
    assert [name for name, _ in search.kept] == ["fused_optimizer"]
    why = {entry.name: entry.why for entry in receipt.entries}
    assert why["compile"] == "hung: no answer within 5 min" and "SIGSEGV" in why["autocast"]


def test_what_changes_the_first_step_is_rejected_however_fast() -> None:
    cheat = Told(steps_s=(0.01,) * 30, losses=(2.0,) * 40, check={"passed": False, "why": "the gradient of weight 0.1 is zero"})
    search, receipt = searched(Made({}, {"autocast": cheat}), "autocast")
    assert search.kept == [] and "the gradient of weight 0.1 is zero" in receipt.entries[0].why


def test_what_learns_worse_is_rejected_however_fast() -> None:
    worse = Told(steps_s=(0.01,) * 30, losses=tuple(2.2 - 0.01 * step for step in range(40)), check=GOOD)
    search, receipt = searched(Made({}, {"autocast": worse}), "autocast")
    assert search.kept == [] and ": the loss is worse" in receipt.entries[0].why


def test_nothing_is_begun_that_can_not_be_told_in_time() -> None:
    made = Made({"compile": 0.5})
    search = RemedySearch(made, [Offer("compile", "on", "off", 2.0)], lambda line: None, within_s=100.0, trial_s=40.0)
    receipt = search.run("a machine", {}, "today")
    assert not made.asked and not search.kept and receipt.gain is None
    assert "40 s" in receipt.stopped and "--within 1 min 40 s" in receipt.stopped


def test_noisy_losses_get_more_steps() -> None:
    made = Made({"compile": 0.5}, noise=0.2)
    search, _ = searched(made, "compile")
    assert made.steps > 40
    assert made.asked[:4] == [(), (), (), ()]  # the plain script again, for as long
    assert [name for name, _ in search.kept] in ([], ["compile"])


def test_data_on_the_device_makes_workers_pointless() -> None:
    made = Made({"resident_data": 0.3, "workers": 0.5})
    search, _ = searched(made, "resident_data", "workers")
    assert search.kept == [("resident_data", "on")]
    assert not any("workers" in names for names in made.asked)


def test_a_gain_that_does_not_come_again_is_not_kept() -> None:
    class Fleeting(Made):
        def attempt(self, remedies: Sequence[tuple[str, Any]], **how: Any) -> Told:
            again = tuple(name for name, _ in remedies) in self.asked and remedies
            told = super().attempt(() if again else remedies, **how)
            return Told(steps_s=tuple(2 * s for s in told.steps_s), losses=told.losses, check=told.check) if again else told

    search, receipt = searched(Fleeting({"compile": 0.7}), "compile")
    assert search.kept == [] and verdicts(receipt)["all together"] == "rejected"
    search, receipt = searched(Fleeting({"compile": 0.9}), "compile")  # so little that it is looked at twice
    assert search.kept == [] and verdicts(receipt) == {"compile": "rejected"}


def test_a_script_that_differs_from_itself_is_left_alone() -> None:
    class Unsteady(Made):
        def repeats(self, asked: Sequence[Repeat]) -> list[Told]:
            unsteady = ({**SAME, "agrees": False, "why": "another batch"},)
            return [replace(self.attempt(()), repeats=unsteady) if one.whole else Told("short", "it ended") for one in asked]

        def keep_at(self, places: Sequence[int]) -> Told:
            return Told("short", "the script ended")

    search, receipt = searched(Unsteady({"compile": 0.5}), "compile")
    assert search.kept == [] and receipt.stopped.endswith(": another batch")


def test_a_remedy_whose_losses_differ_from_step_to_step_gets_more_of_them() -> None:
    """Another draw of dropout, say: the plain script repeats itself exactly, the remedy does not."""

    class Dropping(Made):
        def attempt(self, remedies: Sequence[tuple[str, Any]], **how: Any) -> Told:
            told = super().attempt(remedies, **how)
            noisy = tuple(loss + (0.05 if step % 8 < 4 else -0.05) * bool(remedies) for step, loss in enumerate(told.losses))
            return replace(told, losses=noisy)

    made = Dropping({"compile": 0.5})
    search, _ = searched(made, "compile")
    assert made.steps > 40 and search.kept == [("compile", "on")]


class Chaotic(Made):
    """On a GPU: plain kernels add up in any order, and losses drift apart; deterministic ones repeat themselves."""

    def __init__(self, step_s: dict[str, float], worse: float = 0.0) -> None:
        super().__init__(step_s)
        self.exactly: list[tuple[str, ...]] = []
        self._worse = worse

    def attempt(self, remedies: Sequence[tuple[str, Any]], **how: Any) -> Told:
        told = super().attempt(remedies, **how)
        self._noise = 0.4
        losses = tuple(2.0 - 0.01 * step + self._draw.gauss(0, self._noise) for step in range(self.steps))
        if how.get("exact"):
            self.exactly.append(self.asked[-1])
            losses = tuple(2.0 - 0.01 * step + self._worse * bool(remedies) for step in range(self.steps))
        return replace(told, losses=losses, device="cuda")


def test_where_kernels_make_the_noise_losses_are_proven_with_deterministic_ones() -> None:
    made = Chaotic({"resident_data": 0.3, "tf32": 1.0})
    search, receipt = searched(made, "resident_data", "tf32")
    assert search.kept == [("resident_data", "on")] and made.steps == 40
    assert receipt.entries[0].why.endswith("(without dropout, with deterministic kernels)")
    assert made.exactly == [(), (), ("resident_data",)]  # what is not faster needs no proof


def test_deterministic_kernels_show_what_learns_worse() -> None:
    search, receipt = searched(Chaotic({"autocast": 0.5}, worse=0.2), "autocast")
    assert search.kept == [] and "the loss is worse" in receipt.entries[0].why


def test_a_remedy_of_evaluations_is_judged_by_evaluations() -> None:
    class Evaluating(Made):
        def attempt(self, remedies: Sequence[tuple[str, Any]], **how: Any) -> Told:
            told = super().attempt(remedies, **how)
            factor = 0.6 if any(name == "no_grad_evaluation" for name, _ in remedies) else 1.0
            return replace(told, evaluations_s=tuple(0.1 * factor * self._draw.uniform(0.99, 1.01) for _ in range(12)))

    search, receipt = searched(Evaluating({}), "no_grad_evaluation", "tf32")
    assert search.kept == [("no_grad_evaluation", "on")]
    assert receipt.entries[0].measured is not None and 1.6 < receipt.entries[0].measured < 1.7
    assert receipt.gain is not None and 0.95 < receipt.gain < 1.05  # steps are what they were
    search, receipt = searched(Made({}), "no_grad_evaluation")
    assert search.kept == [] and re.search("too few evaluations .*: 0$", receipt.entries[0].why)


class ByTurns(Made):
    """What each trial is held against was timed in the same minute: all minutes are different here."""

    def __init__(self, step_s: dict[str, float], first_s: dict[str, float] | None = None, stalls: str = "") -> None:
        super().__init__(step_s)
        self.by_turns, self._first_s, self._stalls = True, first_s or {}, stalls

    def attempt(self, remedies: Sequence[tuple[str, Any]], **how: Any) -> Told:
        told = super().attempt(remedies, **how)
        minute = self._draw.uniform(0.5, 2.0)
        names = [name for name, _ in remedies]
        steps_s = [minute * seconds for seconds in told.steps_s]
        if self._stalls in names:
            steps_s[::10] = [400 * seconds for seconds in steps_s[::10]]
        first_s = 0.5 + sum(self._first_s.get(name, 0.0) for name in names)
        told = replace(told, steps_s=tuple(steps_s), first_s=first_s)
        if (against := how.get("against")) is None:
            return told
        return replace(told, against_s=tuple(minute * seconds for seconds in super().attempt(against).steps_s))


def test_by_turns_a_small_gain_shows_on_a_machine_that_is_never_the_same() -> None:
    search, receipt = searched(ByTurns({"compile": 0.94, "tf32": 1.0}), "compile", "tf32")
    assert search.kept == [("compile", "on")]
    (compiled,) = [entry for entry in receipt.entries if entry.name == "compile"]
    assert compiled.measured is not None and 1.05 < compiled.measured < 1.08
    assert receipt.gain is not None and 1.05 < receipt.gain < 1.08


def test_what_puts_its_cost_off_until_later_is_no_gain() -> None:
    search, receipt = searched(ByTurns({"resident_data": 0.1}, stalls="resident_data"), "resident_data")
    assert search.kept == [] and "most steps are faster, but a few are so slow" in receipt.entries[0].why


def test_what_a_remedy_takes_before_the_first_step_is_told() -> None:
    _, receipt = searched(ByTurns({"resident_data": 0.5}, first_s={"resident_data": 30.0}), "resident_data")
    assert "adds 30 s at start, repaid after " in receipt.entries[0].why


def test_what_a_run_is_too_short_to_bring_in_is_rejected() -> None:
    made = ByTurns({"resident_data": 0.5}, first_s={"resident_data": 30.0})
    search = RemedySearch(made, [Offer("resident_data", "on", "off", 2.0)], lambda line: None, lasts_s=20.0)
    receipt = search.run("a machine", {}, "today")
    assert search.kept == [] and "--lasts 20 s" in receipt.entries[0].why


def test_steps_are_never_held_against_evaluations() -> None:
    """Also where a script has too few steps for its trials to take turns."""

    class Evaluating(ByTurns):
        def attempt(self, remedies: Sequence[tuple[str, Any]], **how: Any) -> Told:
            told = super().attempt(remedies, **how)
            return replace(told, against_s=(), evaluations_s=(9.0,) * 9, against_evaluations_s=(9.0,) * 9)

    _, receipt = searched(Evaluating({"compile": 0.5}), "compile")
    assert receipt.entries[0].measured is not None and receipt.entries[0].measured < 20


def test_what_feeds_a_step_is_tried_before_what_makes_it_wait_more() -> None:
    made = Made({"resident_data": 0.3, "compile": 0.8})
    offers = [Offer("compile", "on", "off", 3.0), Offer("resident_data", "on", "off", 1.5)]
    RemedySearch(made, offers, lambda line: None).run("a machine", {}, "today")
    assert next(names for names in made.asked if names) == ("resident_data",)


class Waiting(Made):
    """Steps wait for the optimizer: nothing else gains anything while they do."""

    def attempt(self, remedies: Sequence[tuple[str, Any]], **how: Any) -> Told:
        seen = remedies if any(name == "fused_optimizer" for name, _ in remedies) else ()
        told = super().attempt(seen, **how)
        self.asked[-1] = tuple(name for name, _ in remedies)
        return told


def test_what_gained_nothing_is_tried_again_once_steps_are_shorter() -> None:
    made = Waiting({"compile": 0.8, "fused_optimizer": 0.5})
    search, receipt = searched(made, "compile", "fused_optimizer")
    assert [name for name, _ in search.kept] == ["fused_optimizer", "compile"]
    assert verdicts(receipt) == {"fused_optimizer": "kept", "compile": "kept", "all together": "kept"}
    assert len([entry for entry in receipt.entries if entry.name == "compile"]) == 1


def test_shorter_computing_is_not_tried_while_the_device_waits() -> None:
    made = Made({"autocast": 0.9, "fused_optimizer": 0.9})
    offers = [Offer("autocast", "on", "off", 2.0), Offer("fused_optimizer", "on", "off", 1.5)]
    search = RemedySearch(made, offers, lambda line: None, computes_s=0.002)  # of a step of 20 ms
    receipt = search.run("a machine", {}, "today")
    assert verdicts(receipt)["autocast"] == "untried" and not any("autocast" in names for names in made.asked)
    why = next(entry.why for entry in receipt.entries if entry.name == "autocast")
    assert re.search(r"1\d% of a step", why)
    made = Made({"autocast": 0.9, "fused_optimizer": 0.2})
    search = RemedySearch(made, offers, lambda line: None, computes_s=0.002)  # which is half of what is left of it
    search.run("a machine", {}, "today")
    assert [name for name, _ in search.kept] == ["fused_optimizer", "autocast"]


class SlowHost(Made):
    """The host takes as long to ask for a step as the device to compute it: each alone gains nothing."""

    def attempt(self, remedies: Sequence[tuple[str, Any]], **how: Any) -> Told:
        names = {name for name, _ in remedies}
        told = super().attempt(remedies if names >= {"cuda_graphs", "autocast"} else (), **how)
        self.asked[-1] = tuple(name for name, _ in remedies)
        return told


def test_shorter_computing_that_a_slow_host_hides_is_tried_beside_what_spares_it_the_launches() -> None:
    made = SlowHost({"autocast": 0.5})
    offers = [Offer("autocast", "bf16", "off", 1.4), Offer("cuda_graphs", "on", "off")]
    search = RemedySearch(made, offers, lambda line: None, computes_s=0.019)  # of a step of 20 ms
    receipt = search.run("a machine", {}, "today")
    assert [name for name, _ in search.kept] == ["cuda_graphs", "autocast"]
    assert verdicts(receipt) == {"autocast": "kept", "cuda_graphs": "kept", "all together": "kept"}
    assert ("cuda_graphs",) not in made.asked
    why = next(entry.why for entry in receipt.entries if entry.name == "cuda_graphs")
    assert why.startswith("autocast with cuda graphs: 2.0") or why.startswith("autocast with cuda graphs: 1.9")


def test_what_gains_alone_is_not_tried_beside_what_does_not() -> None:
    made = Made({"cuda_graphs": 0.5})
    offers = [Offer("autocast", "bf16", "off", 1.4), Offer("cuda_graphs", "on", "off")]
    search = RemedySearch(made, offers, lambda line: None, computes_s=0.008)
    receipt = search.run("a machine", {}, "today")
    assert search.kept == [("cuda_graphs", "on")]
    assert verdicts(receipt) == {"autocast": "rejected", "cuda_graphs": "kept", "all together": "kept"}


def test_shorter_computing_is_tried_again_once_launches_are_spared_however_little_that_gained() -> None:
    class Hidden(Made):
        def attempt(self, remedies: Sequence[tuple[str, Any]], **how: Any) -> Told:
            names = {name for name, _ in remedies}
            return super().attempt(remedies if "cuda_graphs" in names else (), **how)

    made = Hidden({"autocast": 0.5, "cuda_graphs": 0.9})
    offers = [Offer("autocast", "bf16", "off", 1.4), Offer("cuda_graphs", "on", "off")]
    search = RemedySearch(made, offers, lambda line: None, computes_s=0.016)  # of a step of 20 ms
    search.run("a machine", {}, "today")
    assert [name for name, _ in search.kept] == ["cuda_graphs", "autocast"]


def test_what_fails_together_is_not_held_against_either() -> None:
    made = SlowHost({"autocast": 1.0})
    offers = [Offer("autocast", "bf16", "off", 1.4), Offer("cuda_graphs", "on", "off")]
    receipt = RemedySearch(made, offers, lambda line: None, computes_s=0.019).run("a machine", {}, "today")
    assert ("cuda_graphs", "autocast") in made.asked
    assert verdicts(receipt) == {"autocast": "rejected", "cuda_graphs": "untried"}


def test_what_promises_little_or_is_much_slower_is_not_tried_beside_anything() -> None:
    for gain, factor in ((1.1, 1.0), (1.4, 1.4)):
        made = Made({"autocast": factor})
        offers = [Offer("autocast", "bf16", "off", gain), Offer("cuda_graphs", "on", "off")]
        RemedySearch(made, offers, lambda line: None, computes_s=0.019).run("a machine", {}, "today")
        assert not any({"cuda_graphs", "autocast"} <= set(names) for names in made.asked)


def test_what_spares_launches_is_not_tried_while_the_device_computes_all_the_time() -> None:
    made = Made({"cuda_graphs": 0.9})
    offers = [Offer("cuda_graphs", "on", "off")]
    receipt = RemedySearch(made, offers, lambda line: None, computes_s=0.019).run("a machine", {}, "today")
    assert verdicts(receipt) == {"cuda_graphs": "untried"} and ("cuda_graphs",) not in made.asked
    search = RemedySearch(Made({"cuda_graphs": 0.9}), offers, lambda line: None, computes_s=0.012)
    search.run("a machine", {}, "today")
    assert search.kept == [("cuda_graphs", "on")]


def test_when_the_time_for_trials_is_over_what_was_kept_is_kept() -> None:
    class Slow(Made):
        def attempt(self, remedies: Sequence[tuple[str, Any]], **how: Any) -> Told:
            time.sleep(0.2 * bool(remedies))
            return super().attempt(remedies, **how)

    offers = [Offer("compile", "on", "off", 3.0), Offer("fused_optimizer", "on", "off", 1.5)]
    search = RemedySearch(Slow({"compile": 0.5, "fused_optimizer": 0.5}), offers, lambda line: None, within_s=0.15)
    receipt = search.run("a machine", {}, "today")
    assert [name for name, _ in search.kept] == ["compile"]
    assert verdicts(receipt) == {"compile": "kept", "fused_optimizer": "untried", "all together": "kept"}
    assert "150 ms" in receipt.stopped and "--within" in receipt.stopped


SAFE = [Offer("resident_data", "cpu", "off", 1.5), Offer("fused_optimizer", "on", "off", 1.3)]


def test_remedies_that_compute_the_same_are_tried_at_once() -> None:
    made = Made({"resident_data": 0.6, "fused_optimizer": 0.8})
    search = RemedySearch(made, [*SAFE, Offer("autocast", "bf16", "off", 2.0)], lambda line: None)
    receipt = search.run("a machine", {}, "today")
    assert next(names for names in made.asked if names) == ("resident_data", "fused_optimizer")
    assert ("fused_optimizer",) not in made.asked and ("resident_data",) not in made.asked
    assert search.kept == [("resident_data", "cpu"), ("fused_optimizer", "on")]
    found = verdicts(receipt)
    assert found["resident_data"] == found["fused_optimizer"] == "kept" and found["autocast"] == "rejected"


def test_a_bundle_that_fails_is_taken_apart() -> None:
    wrong = {"fused_optimizer": Told("crashed", "killed by SIGSEGV")}
    search = RemedySearch(Made({"resident_data": 0.6}, wrong), SAFE, lambda line: None)
    receipt = search.run("a machine", {}, "today")
    assert search.kept == [("resident_data", "cpu")]
    why = {entry.name: entry.why for entry in receipt.entries}
    assert "SIGSEGV" in why["fused_optimizer"] and verdicts(receipt)["resident_data"] == "kept"


def test_a_remedy_that_promises_nothing_is_in_no_bundle() -> None:
    made = Made({"fused_optimizer": 0.8})
    offers = [Offer("fused_optimizer", "on", "off", 1.3), Offer("resident_data", "cpu", "off")]
    RemedySearch(made, offers, lambda line: None).run("a machine", {}, "today")
    assert next(names for names in made.asked if names) == ("fused_optimizer",)


def test_at_half_of_the_time_the_rest_is_tried_at_once() -> None:
    class Slow(Made):
        def attempt(self, remedies: Sequence[tuple[str, Any]], **how: Any) -> Told:
            time.sleep(0.6 * (len(remedies) == 1))
            return super().attempt(remedies, **how)

    names = ("autocast", "channels_last", "compile")
    offers = [Offer(name, "on", "off", 2.0 - 0.1 * at) for at, name in enumerate(names)]
    made = Slow({name: 0.7 for name in names})
    # many threads can make steps several times longer, which would hide what the others gain
    search = RemedySearch(made, [*offers, Offer("threads", 2, 1)], lambda line: None, within_s=1.1)
    search.run("a machine", {}, "today")
    assert [one for one in made.asked if one][:2] == [("autocast",), names]
    assert [name for name, _ in search.kept] == list(names)


def test_what_takes_long_to_try_comes_after_what_promises_nearly_as_much() -> None:
    made = Made({"compile": 0.7, "autocast": 0.7})
    offers = [Offer("compile", "on", "off", 2.0), Offer("autocast", "bf16", "off", 1.6)]
    RemedySearch(made, offers, lambda line: None).run("a machine", {}, "today")
    assert next(names for names in made.asked if names) == ("autocast",)


@pytest.mark.parametrize("graphs", [0.7, 1.0])
def test_shorter_computing_is_tried_once_fewer_launches_were_whatever_few_steps_showed(graphs: float) -> None:
    made = Made({"autocast": 0.5, "cuda_graphs": graphs})
    offers = [Offer("cuda_graphs", "on", "off", 2.2), Offer("autocast", "bf16", "off", 1.02)]
    search = RemedySearch(made, offers, lambda line: None, computes_s=0.002)  # of a step of 20 ms
    search.run("a machine", {}, "today")
    assert ("autocast", "bf16") in search.kept
