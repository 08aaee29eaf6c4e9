"""The search on made-up measurements: what it tries, keeps and drops, and when it stops."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch

import flatout as fo
from flatout.engine.settings import Settings
from flatout.measure.receipt import KEPT, REJECTED, UNTRIED, Receipt
from flatout.measure.recording import NOT_RECORDED
from flatout.plan.knobs import channels_last, compile, fused_optimizer, precision
from flatout.plan.knobs.all import PRICED
from flatout.plan.knobs.knob import Candidate, Knob
from flatout.plan.options import SearchTerms
from flatout.plan.plan import Prediction
from flatout.plan.search import KnobSearch
from flatout.plan.situation import Situation
from flatout.plan.trials.recording import Recording
from flatout.plan.trials.reports import CRASHED, HUNG, OUT_OF_MEMORY, Ask, Losses, PeakMemory, TrialReport
from flatout.recipe.build import build_job

STEP_S = 0.01
NOISE = (0.0, 0.004, -0.003, 0.002, -0.002, 0.001, -0.001, 0.003)
FINE = {"passed": True, "why": "gradients agree", "figures": {}}
Times = Callable[[Mapping[str, Any]], float]


class Turn:
    """A knob with two values, for tests."""

    def __init__(self, name: str, value: Any, factor: float, off: Any = False, **given: Any) -> None:
        self.name, self.off, self._value, self._factor = name, off, value, factor
        self.lossy, self.risky = given.pop("lossy", False), given.pop("risky", False)
        self.meets: tuple[str, ...] = given.pop("meets", ())
        self._given = given

    def default(self, s: Situation, values: Mapping[str, Any]) -> Iterator[Any]:
        return iter(())

    def candidates(self, s: Situation, now: Settings) -> Iterator[Candidate]:
        if getattr(now, self.name) != self._value:
            yield Candidate(self._value, "made up", self._factor, **self._given)


class Machine:
    """A fake bench: seconds from a function of the settings, a little noise, and planted failures."""

    def __init__(self, times: Times, **planted: Any) -> None:
        self.times, self.asked, self.trained = times, [], []
        self.reports: dict[tuple[str, Any], dict[str, Any]] = planted.pop("reports", {})
        self.losses_of: Callable[[Mapping[str, Any]], float] = planted.pop("losses_of", lambda settings: 0.0)
        self.interrupt_at: int | None = planted.pop("interrupt_at", None)

    def attempt(self, ask: Ask) -> TrialReport:
        self.asked.append(ask)
        if self.interrupt_at == len(self.asked):
            raise KeyboardInterrupt
        for (name, value), wrong in self.reports.items():
            if ask.settings[name] == value:
                report = TrialReport(dict(ask.settings), **wrong)
                if not report.ran:
                    return report
        step_s = self.times(ask.settings)
        repeats = tuple(step_s * (1 + noise) for noise in NOISE)
        against = () if ask.against is None else tuple(self.times(ask.against) * (1 - noise) for noise in NOISE)
        check = next((w["check"] for (n, v), w in self.reports.items() if ask.settings[n] == v and "check" in w), FINE)
        return TrialReport(dict(ask.settings), "", "", 0.5, repeats, against, 1000, check, 1.0)

    def losses(self, settings: Mapping[str, Any], steps: int, seed: int, after: int = 0) -> Losses:
        self.trained.append(dict(settings))
        worse = self.losses_of(settings)
        draw = torch.Generator().manual_seed(0)
        base = [2.0 - 0.02 * step + 0.05 * float(torch.randn((), generator=draw)) for step in range(steps)]
        return Losses(dict(settings), tuple(loss * (1 + worse) for loss in base))


def situation(**pins: Any) -> Situation:
    job = build_job(fo.Recipe(data="digits", model="convnet", batch=64, lr=1e-3, budget="40 steps"))
    return Situation(job, torch.device("cpu"), pins, None, Prediction(step_s=STEP_S))


def search(machine: Any, knobs: list[Knob], steps: float = 1e5, **given: Any) -> Receipt:
    pins = given.pop("pins", {})
    start = Settings(**{"fused_optimizer": False, **pins})
    around = {name: given.pop(name) for name in ("priced", "clock", "say") if name in given}
    return KnobSearch(situation(**pins), start, knobs, machine, SearchTerms(steps, **given), **around).run()


@pytest.mark.parametrize(
    ("failure", "words"),
    [
        (OUT_OF_MEMORY, "4 samples at a time do not fit: out of memory: 80 GB are not enough"),
        (HUNG, "4 samples at a time could not be run: hung: 80 GB are not enough"),
    ],
)
def test_a_batch_that_does_not_fit_or_run_is_the_reason(failure: str, words: str) -> None:
    class Small(Machine):
        def held(self, settings: Mapping[str, Any], rows: int) -> PeakMemory:
            return PeakMemory(rows, 0, 0, failure, "80 GB are not enough")

    on_a_device = replace(situation(), device=torch.device("cuda"))
    receipt = KnobSearch(
        on_a_device, Settings(device="cuda", fused_optimizer=False), [FUSED], Small(times()), SearchTerms(1e5)
    ).run()
    assert receipt.stopped == words and receipt.step_s is None


def verdicts(receipt: Receipt) -> dict[tuple[str, Any], str]:
    return {(entry.name, entry.value): entry.verdict for entry in receipt.entries}


FUSED, LAST = Turn("fused_optimizer", True, 1.3), Turn("channels_last", True, 1.2)


def times(**factors: float) -> Times:
    """Each setting that is on divides the step's time by its factor."""
    return lambda settings: STEP_S / math.prod(f for name, f in factors.items() if settings[name] not in (False, "off", "fp32"))


def test_a_gain_is_kept_and_a_loss_is_not() -> None:
    receipt = search(Machine(times(fused_optimizer=1.25, channels_last=0.9)), [FUSED, LAST])
    assert verdicts(receipt) == {("fused_optimizer", True): KEPT, ("channels_last", True): REJECTED}
    assert receipt.settings["fused_optimizer"] is True and receipt.settings["channels_last"] is False
    assert receipt.gain == pytest.approx(1.25, rel=0.01)
    (kept,) = [entry for entry in receipt.entries if entry.verdict == KEPT]
    assert kept.low is not None and kept.high is not None and kept.low < 1.25 < kept.high and kept.n == len(NOISE)


def test_the_most_promising_is_tried_first() -> None:
    machine = Machine(times())
    search(machine, [LAST, FUSED])
    assert [ask.settings["fused_optimizer"] for ask in machine.asked] == [False, True, False]


def test_options_that_repay_sooner_come_first_so_compile_comes_late() -> None:
    compiled = Turn("compile", "on", 1.5, "off", cost_s=40.0)
    receipt = search(Machine(times(fused_optimizer=1.3, compile=1.5)), [compiled, FUSED], steps=2e4)
    assert [entry.name for entry in receipt.entries] == ["fused_optimizer", "compile"]


def test_with_analyze_a_small_gain_does_not_end_the_search() -> None:
    compiled = Turn("compile", "on", 1.02, "off", cost_s=40.0)
    receipt = search(Machine(times(compile=1.5)), [Turn("channels_last", True, 1.005), compiled], steps=2e4, analyze=True)
    assert verdicts(receipt) == {("compile", "on"): KEPT, ("channels_last", True): UNTRIED}


def test_analyze_tries_everything_that_a_run_would_try() -> None:
    little = Turn("channels_last", True, 1.005)
    for analyze in (False, True):
        assert verdicts(search(Machine(times()), [little], steps=1e6, analyze=analyze)) == {("channels_last", True): REJECTED}


def test_a_gain_within_the_noise_is_kept_only_for_another_benefit() -> None:
    machine = Machine(times(fused_optimizer=1.001))
    assert "no gain above the noise" in search(machine, [FUSED]).entries[0].why
    kept = search(machine, [Turn("fused_optimizer", True, 1.3, unless_slower=True)])
    assert kept.settings["fused_optimizer"] is True


def test_a_benefit_that_trials_can_not_show_is_not_compared_with_its_cost() -> None:
    little = Turn("channels_last", True, 1.01, cost_s=3.0, unless_slower=True)
    for seen in (1.001, 0.999):
        assert search(Machine(times(channels_last=seen)), [little]).settings["channels_last"] is True
    assert (
        "at start" not in search(Machine(times(channels_last=1.003)), [little]).entries[0].why
    )  # no gain to compare its cost with
    slower = search(Machine(times(channels_last=0.9)), [little])
    assert slower.settings["channels_last"] is False and "slower" in slower.entries[0].why


@pytest.mark.parametrize("compiled", [1.5, 0.8])
def test_a_setting_kept_to_help_another_is_dropped_if_that_is_rejected(compiled: float) -> None:
    """It changes the arithmetic, so without a gain it is not kept."""
    first = Turn("precision", "bf16", 1.3, "fp32", lossy=True, unless_slower=True, meets=("compile",))
    machine = Machine(times(compile=compiled))
    receipt = search(machine, [first, Turn("compile", "on", 1.1, "off", cost_s=40.0)])
    stays = compiled > 1
    assert verdicts(receipt) == dict.fromkeys([("precision", "bf16"), ("compile", "on")], KEPT if stays else REJECTED)
    assert (receipt.settings["precision"] == "bf16") is stays
    if not stays:
        assert receipt.entries[0].why.startswith("dropped: no speed-up alone")
        assert machine.asked[-1].settings["precision"] == "fp32"


def test_on_a_device_all_kept_settings_together_are_not_slower() -> None:
    class OnADevice(Machine):
        """Runs one arm after another."""

        def attempt(self, ask: Ask) -> TrialReport:
            return replace(super().attempt(ask), against_s=())

        def held(self, settings: Mapping[str, Any], rows: int) -> PeakMemory:
            return PeakMemory(rows, 1000 + rows, 10**9)

    def receipt(**factors: float) -> Receipt:
        knobs = [Turn(name, True, 1.1, unless_slower=True) for name in ("fused_optimizer", "channels_last")]
        s = replace(situation(), device=torch.device("cuda"))
        start = Settings(device="cuda", fused_optimizer=False)
        return KnobSearch(s, start, knobs, OnADevice(times(**factors)), SearchTerms(1e5)).run()

    one = receipt(fused_optimizer=0.992)
    assert set(verdicts(one).values()) == {KEPT} and one.settings["fused_optimizer"] is True
    both = receipt(fused_optimizer=0.992, channels_last=0.992)
    assert set(verdicts(both).values()) == {REJECTED} and both.settings == both.reference and both.gain == 1
    assert "together are slower than the baseline" in both.entries[0].why


@pytest.mark.parametrize("why", ["interrupted", "not proven"])
def test_a_setting_that_can_not_be_dropped_is_not_reported_as_dropped(why: str) -> None:
    first = Turn("precision", "bf16", 1.3, "fp32", lossy=True, unless_slower=True, meets=("compile",))

    def worse(settings: Mapping[str, Any]) -> float:
        """Only both settings together give an equal loss."""
        return 0.05 * (settings["channels_last"] and settings["precision"] == "fp32" and why == "not proven")

    machine = Machine(times(channels_last=1.2), losses_of=worse)
    if why == "interrupted":
        machine.interrupt_at = 4  # baseline, precision, channels_last; then precision would be dropped
    last = Turn("channels_last", True, 1.2, lossy=True)
    receipt = search(machine, [first, last])
    assert receipt.settings["precision"] == "bf16" and verdicts(receipt)["precision", "bf16"] == KEPT
    assert ("interrupted" in receipt.stopped) is (why == "interrupted")


@pytest.mark.parametrize(("anew", "verdict"), [(True, UNTRIED), (False, KEPT)])
def test_settings_that_need_no_new_compile_are_tried_if_a_new_compile_would_not_pay(anew: bool, verdict: str) -> None:
    class SlowToCompile(Machine):
        def attempt(self, ask: Ask) -> TrialReport:
            return replace(super().attempt(ask), first_s=40.0 if ask.settings["compile"] == "on" else 0.5)

    class OnceCompiled(Turn):
        def candidates(self, s: Situation, now: Settings) -> Iterator[Candidate]:
            return super().candidates(s, now) if now.compile == "on" else iter(())

    compiled = Turn("compile", "on", 1.5, "off", cost_s=40.0)
    little = OnceCompiled("channels_last", True, 1.03, cost_s=0.5, compiles_anew=anew)
    receipt = search(SlowToCompile(times(compile=1.5, channels_last=1.03)), [compiled, little], steps=2e4)
    assert verdicts(receipt) == {("compile", "on"): KEPT, ("channels_last", True): verdict}
    assert not [entry for entry in receipt.entries if entry.name == "channels_last" and "once" in entry.why]


def test_a_different_result_is_rejected_whatever_its_speed() -> None:
    wrong = {("channels_last", True): {"check": {"passed": False, "why": "gradient of head.bias: norm 2.00x", "figures": {}}}}
    receipt = search(Machine(times(channels_last=3.0), reports=wrong), [LAST])
    assert receipt.settings["channels_last"] is False and "head.bias: norm 2.00x" in receipt.entries[0].why


@pytest.mark.parametrize("failure", [OUT_OF_MEMORY, CRASHED])
def test_a_crashed_trial_is_rejected_and_the_search_continues(failure: str) -> None:
    dead = {("fused_optimizer", True): {"failure": failure, "why": "killed by SIGKILL"}}
    receipt = search(Machine(times(channels_last=1.2), reports=dead), [FUSED, LAST])
    assert verdicts(receipt) == {("fused_optimizer", True): REJECTED, ("channels_last", True): KEPT}
    assert receipt.entries[0].why == f"{failure}: killed by SIGKILL"


def test_a_setting_with_a_worse_loss_is_dropped() -> None:
    lossy = Turn("precision", "bf16", 2.0, off="fp32", lossy=True)
    machine = Machine(
        times(precision=2.0, channels_last=1.2), losses_of=lambda settings: 0.05 * (settings["precision"] == "bf16")
    )
    receipt = search(machine, [lossy, LAST])
    assert receipt.settings["precision"] == "fp32" and receipt.settings["channels_last"] is True
    assert verdicts(receipt)[("precision", "bf16")] == REJECTED
    assert receipt.paired is not None and receipt.paired["passed"] and receipt.gain == pytest.approx(1.2, rel=0.01)


class Noisy(Machine):
    """In bf16 the loss is as good on average, but noisy in every step."""

    last = 10_000  # it has no more batches than that
    spread, drift, seed = 0.12, 0.0, 0

    def losses(self, settings: Mapping[str, Any], steps: int, seed: int, after: int = 0) -> Losses:
        self.trained.append({**settings, "after": after})
        if after + steps > self.last:
            return Losses(dict(settings), (), NOT_RECORDED)
        draw = torch.Generator().manual_seed(1000 * self.seed + after)
        learned = torch.full((steps,), 2.0)
        learned[0] = 3.0
        if settings["precision"] == "bf16":
            learned += self.spread * torch.randn(steps, generator=draw)
            learned[steps // 2 :] += self.drift
        return Losses(dict(settings), tuple(learned.tolist()))


def test_noisy_losses_get_as_many_more_batches_as_needed() -> None:
    lossy = Turn("precision", "bf16", 2.0, off="fp32", lossy=True)
    machine = Noisy(times(precision=2.0, channels_last=1.2))
    receipt = search(machine, [lossy, LAST])
    assert receipt.settings["precision"] == "bf16" and receipt.settings["channels_last"] is True
    assert receipt.paired is not None and receipt.paired["n"] > 40 and receipt.paired["power"] >= 0.8
    parts = range(0, receipt.paired["n"], 40)
    for settings in (("fp32", False), ("bf16", False), ("bf16", True)):  # each part once
        assert [one["after"] for one in machine.trained if (one["precision"], one["channels_last"]) == settings] == [*parts]


def test_a_setting_that_gains_later_is_proven_for_that_gain() -> None:
    """No trial shows a gain yet, so from the measured times more training would not be worth it."""
    first = Turn("precision", "bf16", 1.3, off="fp32", lossy=True, unless_slower=True, meets=("compile",))
    machine = Noisy(times(compile=1.5))
    receipt = search(machine, [first, Turn("compile", "on", 1.1, "off", cost_s=40.0)])
    assert verdicts(receipt) == {("precision", "bf16"): KEPT, ("compile", "on"): KEPT}
    assert {one["after"] for one in machine.trained if one["compile"] == "off"} > {0}


def test_a_loss_that_is_worse_at_the_end_of_each_part_is_found() -> None:
    machine = Noisy(times(precision=2.0))
    machine.spread, machine.drift, machine.seed = 0.06, 0.026, 21  # 1.3% in the second half, half of that in the whole
    receipt = search(machine, [Turn("precision", "bf16", 2.0, off="fp32", lossy=True)])
    assert len(machine.trained) > 2 and verdicts(receipt) == {("precision", "bf16"): REJECTED}


@pytest.mark.parametrize("why", ["no time", "would not pay", "not recorded"])
def test_no_more_training_if_too_long_not_worth_it_or_not_recorded(why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flatout.plan.side_by_side._MOST_PARTS", 100)
    gain = 1.05 if why == "would not pay" else 2.0
    machine = Noisy(times(precision=gain))
    machine.last, machine.spread = 40 if why == "not recorded" else 10_000, 0.3
    given: dict[str, Any] = {"no time": {"limit_s": 4.0, "clock": lambda: 0.0}, "would not pay": {"steps": 17_200}}.get(why, {})
    receipt = search(machine, [Turn("precision", "bf16", gain, off="fp32", lossy=True)], **given)
    assert verdicts(receipt) == {("precision", "bf16"): REJECTED} and receipt.settings["precision"] == "fp32"
    assert receipt.entries[0].why.startswith("not enough evidence")
    assert {one["after"] for one in machine.trained} == {0} or why == "not recorded"


def test_the_receipt_states_the_test_its_margin_n_and_power() -> None:
    receipt = search(Machine(times(channels_last=1.2)), [LAST])
    assert receipt.paired is not None and receipt.paired["n"] >= 12 and receipt.paired["power"] > 0.8
    assert receipt.paired["margin"] > 0 and receipt.paired["test"]
    assert Receipt.from_dict(receipt.to_dict()) == receipt


def test_a_pinned_setting_is_never_changed() -> None:
    machine = Machine(times(channels_last=5.0, fused_optimizer=1.2))
    receipt = search(machine, [LAST, FUSED], pins={"channels_last": False})
    assert all(ask.settings["channels_last"] is False for ask in machine.asked) and receipt.settings["fused_optimizer"] is True


def test_a_short_run_makes_no_trials() -> None:
    machine = Machine(times(channels_last=1.2))
    receipt = search(machine, [LAST], steps=100)
    assert not machine.asked and receipt.step_s is None and "would cost" in receipt.stopped


def test_a_one_off_cost_must_be_repaid_in_the_remaining_steps() -> None:
    costly = Turn("compile", "on", 1.5, off="off", cost_s=30.0)
    machine = Machine(times(compile=1.5))
    paid = search(machine, [costly], steps=1e5)
    assert paid.settings["compile"] == "on" and "repaid after 150 steps" in paid.entries[0].why
    unpaid = search(machine, [costly, FUSED], steps=5000)  # saves 17 s
    assert verdicts(unpaid)[("compile", "on")] == UNTRIED and unpaid.settings["compile"] == "off"


def test_a_rejected_setting_is_tried_again_after_a_related_one_is_kept() -> None:
    def together(settings: Mapping[str, Any]) -> float:
        factor = 1.5 if settings["channels_last"] else 1.0
        return STEP_S / (factor * (1.4 if settings["channels_last"] and settings["fused_optimizer"] else 1.0))

    meeting = Turn("fused_optimizer", True, 1.3, meets=("channels_last",))
    receipt = search(Machine(together), [meeting, LAST])
    assert [(entry.name, entry.verdict) for entry in receipt.entries] == [
        ("fused_optimizer", REJECTED), ("channels_last", KEPT), ("fused_optimizer", KEPT),
    ]  # fmt: skip


def test_ctrl_c_continues_with_the_proven_settings() -> None:
    lossy = Turn("precision", "bf16", 2.0, off="fp32", lossy=True)
    machine = Machine(times(precision=2.0, channels_last=1.2), interrupt_at=3)
    lines: list[str] = []
    receipt = search(machine, [lossy, LAST], say=lines.append)
    assert receipt.settings["precision"] == "bf16" and receipt.settings["channels_last"] is False
    assert receipt.stopped.startswith("interrupted") and receipt.paired is not None
    assert "Ctrl-C: trials stopped; training starts now" in lines[-1]


def test_after_ctrl_c_untried_settings_keep_their_defaults() -> None:
    machine = Machine(times(fused_optimizer=1.2, channels_last=1.3), interrupt_at=3)
    start = Settings(fused_optimizer=True, channels_last=True)
    fused, last = Turn("fused_optimizer", True, 1.1), Turn("channels_last", True, 1.3)
    receipt = KnobSearch(situation(), start, [fused, last], machine, SearchTerms(1e5, analyze=True)).run()
    assert verdicts(receipt) == {("channels_last", True): KEPT, ("fused_optimizer", True): UNTRIED}
    assert receipt.settings["channels_last"] is True and receipt.settings["fused_optimizer"] is True
    assert "default: no time left" in receipt.entries[-1].why


def test_defaults_are_always_tried() -> None:
    machine = Machine(times(fused_optimizer=0.8, precision=3.0))
    big = Turn("precision", "bf16", 3.0, off="fp32")
    receipt = KnobSearch(situation(), Settings(fused_optimizer=True), [FUSED, big], machine, SearchTerms(2000)).run()
    assert receipt.settings["fused_optimizer"] is False and receipt.settings["precision"] == "bf16"


def test_ctrl_c_before_any_proof_changes_nothing() -> None:
    lines: list[str] = []
    receipt = search(Machine(times(channels_last=1.2), interrupt_at=1), [LAST], say=lines.append, analyze=True)
    assert receipt.step_s is None and "interrupted" in receipt.stopped
    assert [line for line in lines if line.startswith("Ctrl-C: ")] and "showing the plan" in lines[-1]


def test_a_clock_that_jumps_back_neither_ends_nor_extends_the_search_forever() -> None:
    ticks = iter([1000.0, *(10.0 - n for n in range(1000))])
    receipt = search(Machine(times(channels_last=1.2)), [LAST], clock=lambda: next(ticks))
    assert receipt.settings["channels_last"] is True and receipt.took_s == 0.0


def test_the_time_limit_for_planning_holds() -> None:
    clock = iter(range(0, 100_000, 100))
    receipt = search(Machine(times(channels_last=1.2)), [LAST, FUSED], clock=lambda: float(next(clock)), limit_s=150)
    assert "planning time used" in receipt.stopped and len([e for e in receipt.entries if e.verdict == UNTRIED]) == 1


def test_a_recording_replays_every_decision() -> None:
    machine = Machine(times(fused_optimizer=1.25, channels_last=0.9, precision=1.7))
    knobs: list[Knob] = [fused_optimizer, channels_last, precision, compile]
    recording = Recording(None, machine)
    first = search(recording, knobs)
    asked = len(machine.asked)
    replayed = Recording(recording.to_dict())
    again = search(replayed, knobs)
    assert replace(again, took_s=0) == replace(first, took_s=0) and len(machine.asked) == asked


def test_a_replayed_search_runs_out_of_time_at_the_same_point() -> None:
    class Slow(Machine):
        now_s = 0.0

        def attempt(self, ask: Ask) -> TrialReport:
            Slow.now_s += 40.0
            return replace(super().attempt(ask), took_s=40.0)

    machine = Slow(times(fused_optimizer=1.3, channels_last=1.2))
    first = Recording(None, machine)
    search(first, [FUSED, LAST], limit_s=60.0, clock=lambda: Slow.now_s)
    again = Recording(first.to_dict(), machine)
    receipt = search(again, [FUSED, LAST], limit_s=60.0, clock=again.clock)
    assert again.asked_live == 0 and "planning time used" in receipt.stopped
    assert verdicts(receipt) == {("fused_optimizer", True): KEPT, ("channels_last", True): UNTRIED}


def test_a_trial_too_long_for_the_time_left_does_not_block_others() -> None:
    compiled = Turn("compile", "on", 50.0, "off", cost_s=400.0)
    receipt = search(Machine(times(fused_optimizer=1.3)), [compiled, FUSED], steps=1e6, limit_s=300.0)
    assert verdicts(receipt) == {("fused_optimizer", True): KEPT, ("compile", "on"): UNTRIED}
    assert "of 5 min 00 s planning time used; the next trial (compile on) needs 6 min 42 s" in receipt.stopped


def test_earlier_measurements_serve_a_run_too_short_for_trials() -> None:
    machine = Machine(times(fused_optimizer=1.3))
    long = Recording(None, machine)
    search(long, [FUSED])
    short = search(Recording(long.to_dict()), [FUSED, LAST], steps=10, free=True)
    assert short.settings["fused_optimizer"] is True and ("fused_optimizer", True) in verdicts(short)
    assert "would cost" in search(machine, [FUSED], steps=10).stopped


def test_a_model_with_different_repeats_gets_no_trials() -> None:
    doubt = {
        ("fused_optimizer", False): {
            "check": {"passed": False, "why": "not enough evidence: it differs from itself", "figures": {}}
        }
    }
    machine = Machine(times(fused_optimizer=2.0), reports=doubt)
    receipt = search(machine, [FUSED])
    assert receipt.settings["fused_optimizer"] is False and "differs from itself" in receipt.stopped and len(machine.asked) == 1


def test_a_guarantee_gets_a_price_if_cheap_to_measure() -> None:
    def slower(settings: Mapping[str, Any]) -> float:
        return STEP_S * (1.25 if settings["deterministic"] else 1.0) / (1.2 if settings["channels_last"] else 1.0)

    receipt = search(Machine(slower), [LAST], priced=PRICED)
    assert receipt.settings["deterministic"] is True and receipt.settings["channels_last"] is True
    assert receipt.entries[-1].name == "deterministic" and "take 1.25x the time" in receipt.entries[-1].why
    unasked = search(Machine(slower), [LAST], steps=1e4, priced=PRICED)  # 100 s: a price may cost one of them, and would more
    assert verdicts(unasked) == {("channels_last", True): KEPT}
