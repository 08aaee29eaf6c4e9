"""`tune`: search over a recipe's keys, and judge the winner."""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from flatout.base.answering_child import NoAnswer
from flatout.base.budget import Budget
from flatout.base.errors import RunBusy, Stopped, TrainingError, UsageError
from flatout.base.events import EventLog, Observer
from flatout.machine.host import usable_cores
from flatout.recipe.load import recipe_given, with_overrides
from flatout.recipe.schema import Recipe
from flatout.runs.trained import CACHE
from flatout.store.lock import FileLock, StartLock
from flatout.store.run_folder import check_place
from flatout.tuning.crew.crew import TrialCrew
from flatout.tuning.crew.far import answer_rank_0, far_seats
from flatout.tuning.crew.own_seats import on_devices, own_seats
from flatout.tuning.crew.seats import CrewSeat
from flatout.tuning.search.search import TrialSearch
from flatout.tuning.space.defaults import default_space
from flatout.tuning.space.fitting import check_space
from flatout.tuning.space.keys import check_keys
from flatout.tuning.space.own_point import own_point
from flatout.tuning.space.reading import read_space, space_of
from flatout.tuning.space.space import Space
from flatout.tuning.start import StudyStart
from flatout.tuning.study.driver import Driver, so_far, spent_in
from flatout.tuning.study.earlier import finished_before
from flatout.tuning.study.finals import Finals, Size
from flatout.tuning.study.folder import StudyFolder, create_study, find_alike
from flatout.tuning.study.ledger import PROCESS, StudyLedger, parts_in
from flatout.tuning.study.outcome import Study, outcome, write_best
from flatout.tuning.study.spending import Spending, check_budget
from flatout.world.joining import meet

BUDGET = "10 min"
Say = Callable[[str], None]
Seats = Callable[[Recipe, Path | None], AbstractContextManager[Sequence[CrewSeat]]]


def tune(
    recipe: Any,
    space: Mapping[str, Any] | Space | Path | str | None = None,
    *,
    budget: str | None = None,
    trials: int | None = None,
    metric: str | None = None,
    seed: int = 0,
    device: str | None = None,
    runs: Path | str = "runs",
    fresh: bool = False,
    observers: Sequence[Observer] = (),
    cache: Path | str | None = CACHE,
    say: Say = lambda line: None,
    seats: Seats | None = None,
    start: StudyStart | None = None,
) -> Study:
    """Search for better values of a recipe's keys. `study.best.recipe` is the winner, judged on rows and seeds that did not
    choose it.

    `space`: {"lr": "1e-4..1e-1", "model.hidden": [64, 128]}, or a YAML file of that; without it the learning rate, weight
    decay, warm-up and schedule are searched. `budget`: time, money or energy of the whole study, "10 min"; `trials`: most
    trials. `metric`: what trials are compared by; default: the recipe's. `device`: "cuda:0,cuda:1" for these two, "cpu,cpu" for
    two processes that share the cores; default: all GPUs that the recipe allows. The same call goes on with an unfinished
    study; a larger budget extends a finished one; `fresh` starts a new one. Under torchrun the first process drives the study
    and the others train for it. `seats`: processes elsewhere, as a cluster gives them. `start`: what the command has done
    already.
    """
    with StudyStart() if start is None else nullcontext(start) as begun:
        if seats is None and not (isinstance(recipe, Recipe) and recipe.source is None):
            begun.template.begin()
        asked = recipe_given(recipe)
        if metric is not None:
            asked = with_overrides(asked, [f"best={metric}"])
        searched = _space(asked, space)
        check_space(searched, partial(with_overrides, asked))
        check_keys(asked, searched)
        if trials is not None and trials < 1:
            raise UsageError(f"trials: expected 1 or more, got {trials}")
        limit = None if budget is None and trials is not None else Budget.parse(budget or BUDGET)
        check_budget(limit, asked.price)
        kept = None if cache is None else Path(cache)
        asked, devices = on_devices(asked, device)
        meeting = None if seats is not None else meet()
        place = None if meeting is None else meeting[0]
        own = [] if seats is not None else own_seats(asked, kept, devices, place, begun.template)
        if meeting is not None and meeting[0].rank > 0:
            return Study(StudyFolder(Path(answer_rank_0(*meeting, own))), asked)
        with ExitStack() as until_done:
            found: list[Study] = []
            others = None if meeting is None else far_seats(*meeting, lambda: str(found[0].path))
            if (elsewhere := others if seats is None else seats(asked, kept)) is not None:
                own += until_done.enter_context(elsewhere)
            sitting = _Sitting(
                asked, searched, limit, trials, seed, Path(runs), fresh, tuple(observers), say, tuple(own), begun.began_s
            )
            found.append(sitting.held())
        return found[0]


@dataclass
class _Sitting:
    """One call: it begins a study, or goes on with one."""

    recipe: Recipe
    space: Space
    budget: Budget | None
    trials: int | None
    seed: int
    runs: Path
    fresh: bool
    observers: tuple[Observer, ...]
    say: Say
    seats: tuple[CrewSeat, ...]
    began_s: float

    def held(self) -> Study:
        with ExitStack() as until_done:
            crew = self._crew()
            until_done.callback(crew.stop)
            started_s = time.monotonic()
            about = _about(crew)
            took = about.pop("took", {})
            met_s = time.monotonic() - started_s
            folder, events = self._folder(about, until_done)
            ledger = StudyLedger(self.began_s + met_s, parts_in(events))
            for part, seconds in took.items():
                ledger.add(part, seconds)
            ledger.add(PROCESS, max(0.0, met_s - sum(took.values())))
            with ledger.timed(PROCESS):
                crew.keep_states_in(folder.states)
            log = until_done.enter_context(EventLog(folder.log_path, self.observers))
            return self._work(folder, events, about, crew, log, ledger)

    def _folder(self, about: Mapping[str, Any], until_done: ExitStack) -> tuple[StudyFolder, list[dict[str, Any]]]:
        """Locked: of two processes that start at once, one works on the study, and the other changes nothing."""
        written = self.space.written()
        mark = json.dumps([about["identity"], written, about["metric"], self.seed], sort_keys=True, default=str)
        identity = hashlib.sha256(mark.encode()).hexdigest()[:32]
        with StartLock(self.runs, identity):
            folder = None if self.fresh else find_alike(self.runs, identity)
            if folder is not None and _is_done(folder) and not self._extends(folder):
                folder = None
            if folder is None:
                check_place(self.runs)
                asked = {
                    "identity": identity,
                    "recipe": self.recipe.written(),
                    "source": None if self.recipe.source is None else str(self.recipe.source.resolve()),
                    "overrides": list(self.recipe.given[0]),
                    "space": written,
                    "seed": self.seed,
                    "about": dict(about),
                    "earlier": [] if self.fresh else finished_before(self.runs, about["identity"], about["metric"]),
                }
                folder = create_study(self.runs, self.recipe.stem, {**asked, **self._limits()})
                _lock(folder, until_done)
                return folder, []
            _lock(folder, until_done)
            events = folder.events()
            self.say(f"going on with {folder.path}: {so_far(events)}")
            return folder, events

    def _extends(self, folder: StudyFolder) -> bool:
        """Whether this call allows more than the finished study did, and less of nothing."""
        before = folder.asked
        trials, earlier = math.inf if self.trials is None else self.trials, before["trials"]
        budget = None if before["budget"] is None else Budget.parse(before["budget"])
        if earlier is None and budget is None:
            return False
        grown = [trials > earlier] if earlier is not None else []
        shrunk = [trials < earlier] if earlier is not None else []
        if budget is not None and self.budget is not None:
            if budget.unit != self.budget.unit:
                return False
            grown.append(self.budget.amount > budget.amount)
            shrunk.append(self.budget.amount < budget.amount)
        elif budget is not None:
            grown.append(True)
        return any(grown) and not any(shrunk)

    def _limits(self) -> dict[str, Any]:
        return {"budget": None if self.budget is None else str(self.budget), "trials": self.trials}

    def _work(
        self,
        folder: StudyFolder,
        events: list[dict[str, Any]],
        about: Mapping[str, Any],
        crew: TrialCrew,
        log: EventLog,
        ledger: StudyLedger,
    ) -> Study:
        devices = self._metered(about["device"])
        spending = Spending(self.budget, devices, self.recipe.price, spent_in(events), since_s=self.began_s)
        search = TrialSearch(
            self.space,
            total=about["total_steps"],
            higher_is_better=about["higher_is_better"],
            seed=self.seed,
            start=[] if (own := own_point(self.recipe, self.space)) is None else [own],
            earlier=[(point, score) for point, score in folder.asked["earlier"]],
        )
        driver = Driver(
            self.recipe, self.space, search, crew, log, spending, ledger,
            total=about["total_steps"], state_bytes=about["state_bytes"],
        )  # fmt: skip
        driver.replay(events)
        if events:
            folder.reopen({**folder.asked, **self._limits()})
        share = driver.share if events else None  # of a larger budget the same time is a smaller share
        once = driver.once
        how: dict[str, Any] = {
            **self._limits(),
            "share": share,
            "once": once,
            "isolated": crew.isolated,
            "folder": str(folder.path),
        }
        how["devices"] = crew.names
        log.emit("resumed", **how) if events else log.emit("begun", **how)
        driver.limited(self.trials, share, once)
        driver.look(self.trials)
        stopped = ""
        try:
            driver.run()
        except KeyboardInterrupt:
            stopped = "Ctrl-C"
            crew.stop()
            if search.best(1):
                self.say("stopped: training the best so far again, to report it honestly; Ctrl-C again leaves that out")
        best = search.best(3)
        if not best and stopped:
            raise Stopped(
                "SIGINT",
                130,
                f"interrupted before a trial was trained to its end. The same command goes on with {folder.name}.",
            )
        if not best:
            raise TrainingError(driver.why_nothing())
        finals = Finals(driver.whole, log, self.seed, events)
        finalists = [(trial.number, trial.point, self.space.overrides(trial.point)) for trial, _ in best]
        size = driver.finals_size if self.budget is not None else Size(3, 3, 8)
        verdict = finals.judge(finalists, size, about["higher_is_better"])
        found = outcome(about, search, driver, verdict, spending, ledger, stopped)
        folder.finish(found)
        write_best(folder, self.recipe, found["winner"]["overrides"])
        log.emit("finished", winner=found["winner"]["number"])
        return Study(folder, self.recipe)

    def _crew(self) -> TrialCrew:
        """Processes of their own, if the recipe can be read again there."""
        has_others = not all(seat.is_here for seat in self.seats)
        packed = 1 if has_others or self.recipe.source is None else max(1, usable_cores() // len(self.seats))
        return TrialCrew(self.seats, isolated=self.recipe.source is not None, packed=packed)

    def _metered(self, device: str) -> list[torch.device]:
        """The devices whose energy counts. `device`: of the first process."""
        if self.budget is not None and self.budget.unit == "wh" and not all(seat.is_here for seat in self.seats):
            raise UsageError(f"the budget {self.budget} counts the energy of this machine alone: use time or money on several")
        names = [device] if len(self.seats) == 1 else [seat.name for seat in self.seats if seat.is_here]
        return [torch.device(name) for name in dict.fromkeys(names)]


def _about(crew: TrialCrew) -> dict[str, Any]:
    try:
        about = crew.meet()
    except NoAnswer as none:
        raise TrainingError(f"no trial can be trained: {none}") from none
    if "refused" in about:
        raise (UsageError if about["exit_code"] == UsageError.exit_code else TrainingError)(about["refused"])
    return about


def _lock(folder: StudyFolder, until_done: ExitStack) -> None:
    lock = FileLock(folder.path / "lock")
    if not lock.take():
        raise RunBusy(f"{folder.path} is being worked on by process {lock.owner()}: wait, stop it, or use --fresh")
    until_done.callback(lock.release)


def _is_done(folder: StudyFolder) -> bool:
    """It ended by itself. One that Ctrl-C ended has a result too, and goes on."""
    return folder.result is not None and not folder.result.get("stopped")


def _space(recipe: Recipe, given: Mapping[str, Any] | Space | Path | str | None) -> Space:
    if given is None:
        return default_space(recipe)
    if isinstance(given, Space):
        return given
    return read_space(Path(given)) if isinstance(given, str | Path) else space_of(given)
