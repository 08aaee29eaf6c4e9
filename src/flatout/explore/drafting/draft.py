"""A draft of a recipe, and the facts about the data that it follows from."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace

from flatout.explore.drafting.sizes import DraftTraining
from flatout.explore.drafting.writing import DraftLine, page

_OBJECTIVES = {
    "binary": "one of two classes; metrics are accuracy and AUC",
    "classify": "one of several classes",
    "multilabel": "any number of classes a row",
    "regress": "a number; {regress: {error: huber}} cares less for outliers",
    "next_token": "each token from those before it",
}
_MODELS = {
    "mlp": "larger where there is more to learn",
    "convnet": "each layer halves the sides",
    "gpt": "larger learns more, and takes longer",
}


@dataclass(frozen=True)
class Draft:
    """`headline` and `facts` are printed; the rest becomes the recipe."""

    headline: str
    facts: tuple[tuple[str, str], ...]
    data: tuple[DraftLine, ...]
    objective: str
    training: DraftTraining

    def text(self, command: Sequence[str], recipe: str) -> str:
        """The content of the recipe file; `command` is the command line, `recipe` the name of the file."""
        training = self.training
        ((model, options),) = training.model.items()
        entries = [
            DraftLine("data"),
            *(replace(entry, depth=entry.depth + 1) for entry in self.data),
            DraftLine("model", note="or your own: mine:Net, for class Net in mine.py beside this file"),
            DraftLine(model, options, _MODELS[model], depth=1),
            DraftLine("objective", self.objective, _OBJECTIVES[self.objective]),
            DraftLine("batch", training.batch, "rows a step; with a larger one, a larger lr"),
            DraftLine("lr", training.lr, "the first thing to try others of: 3 times more or less"),
        ]
        if training.clip is not None:
            entries.append(DraftLine("clip", training.clip, "gradients longer than this are shortened"))
        if training.evaluate is not None:
            entries.append(DraftLine("evaluate", training.evaluate))
        entries.append(DraftLine("budget", training.budget, f"or {self._other_budgets()}"))
        title = [
            f"Written by: {shlex.join(command)}",
            self.headline,
            "",
            f"flatout data {shlex.quote(recipe)}    what the data is, and how fast it comes",
            f"flatout run {shlex.quote(recipe)}     trains it",
        ]
        return page(title, entries)

    def _other_budgets(self) -> str:
        counted = "2000 steps" if "epoch" in self.training.budget else "3 epochs"
        goals = {"regress": "r2 >= 0.8", "next_token": "loss <= 1.5"}
        return f"{counted}, 10 min, {goals.get(self.objective, 'accuracy >= 0.9')} within 20 epochs"
