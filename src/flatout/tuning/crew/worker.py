"""What a process that trains trials answers. The same code works without a process of its own, for objects of a notebook."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from flatout.base.errors import FlatoutError
from flatout.engine.surroundings import compiler_left_out
from flatout.recipe.load import with_overrides
from flatout.recipe.schema import Recipe
from flatout.tuning.training.candidate import TrialCandidate
from flatout.tuning.training.layout import Layout
from flatout.tuning.training.outcomes import Stopped
from flatout.tuning.training.trainers import Trainers, why_it_failed

Asked = Mapping[str, Any]


class TrialWorker:
    """Questions are plain data, and so are the answers."""

    def __init__(self, recipe: Recipe, cache: Path | None, should_stop: Stopped = lambda: False) -> None:
        self._recipe = recipe
        self._trainers = Trainers(lambda overrides: with_overrides(recipe, overrides), cache)
        self._should_stop = should_stop

    def answer(self, question: Asked) -> dict[str, Any]:
        ((verb, given),) = question.items()
        answers: dict[str, Callable[[Any], dict[str, Any]]] = {
            "about": self._about, "layout": self._layout, "rate": self._rate, "train": self._train, "save": self._save,
            "forget": self._forget, "states": self._keep_states,
        }  # fmt: skip
        with compiler_left_out():  # optimizers would load it, which takes seconds
            return answers[verb](given)

    def close(self) -> None:
        self._trainers.close()

    def _about(self, given: Asked) -> dict[str, Any]:
        began_s = time.perf_counter()
        try:
            self._recipe.load_data(self._trainers.cache)
            read_s = time.perf_counter()
            about = self._trainers.about(self._trainers.candidate(0, []))
            return {**about, "took": {"data": read_s - began_s, "settings": time.perf_counter() - read_s}}
        except FlatoutError as error:  # of the recipe, not of a trial
            return {"refused": str(error), "exit_code": error.exit_code}

    def _layout(self, given: Asked) -> dict[str, Any]:
        return self._trainers.choose(self._candidates(given["trials"]), given.get("limit_s", 10.0)).to_dict()

    def _rate(self, given: Asked) -> dict[str, Any]:
        (candidate,) = self._candidates([given["trial"]])
        rate = self._trainers.rate_alone(candidate, given["seconds"])
        mine, free = self._trainers.device_memory(candidate)
        return {"rate": rate, "bytes": mine, "free_bytes": free}

    def _train(self, given: Asked) -> dict[str, Any]:
        began_s = time.perf_counter()
        trials, layout = self._candidates(given["trials"]), Layout(**given["layout"])
        try:
            found = self._trainers.train(trials, given["start"], given["to"], layout, given["which"], self._should_stop)
        except Exception as error:
            return {"failed": why_it_failed(error), "seconds": time.perf_counter() - began_s}
        scores = {str(number): score for number, score in found.items()}
        return {"scores": scores, "seconds": time.perf_counter() - began_s, "degraded": self._trainers.degraded}

    def _save(self, given: Asked) -> dict[str, Any]:
        if self._trainers.states is not None:
            self._trainers.save(given["numbers"])
        return {}

    def _forget(self, given: Asked) -> dict[str, Any]:
        self._trainers.forget(given["numbers"])
        return {}

    def _keep_states(self, given: Asked) -> dict[str, Any]:
        """A folder that this machine does not see is not used: it would be another one."""
        folder = Path(given["folder"])
        is_seen = (folder / given["seen"]).exists()
        self._trainers.states = folder if is_seen else None
        return {"seen": is_seen}

    def _candidates(self, trials: Sequence[Sequence[Any]]) -> list[TrialCandidate]:
        return [self._trainers.candidate(number, overrides) for number, overrides in trials]
