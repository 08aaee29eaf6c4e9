"""A draft of a recipe, and the facts about the data that it follows from."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace

from flatout.explore.drafting.sizes import DraftTraining
from flatout.explore.drafting.writing import DraftLine, page
from flatout.explore.guard.finding import GuardFinding

_OBJECTIVES = {
    "binary": "one of two classes; metrics are accuracy and AUC",
    "classify": "one of several classes",
    "multilabel": "any number of classes per row",
    "regress": "a number; {regress: {error: huber}} is less sensitive to outliers",
    "next_token": "predicts each token from those before it",
}
_MODELS = {
    "mlp": "larger layers for more data",
    "convnet": "each layer halves height and width",
    "gpt": "a larger model learns more and takes longer",
}


@dataclass(frozen=True)
class Draft:
    """`headline` and `facts` are printed; the rest becomes the recipe."""

    headline: str
    facts: tuple[tuple[str, str], ...]
    data: tuple[DraftLine, ...]
    objective: str
    training: DraftTraining
    findings: tuple[GuardFinding, ...] = ()

    def text(self, command: Sequence[str], recipe: str) -> str:
        """The content of the recipe file; `command` is the command line, `recipe` the name of the file."""
        training = self.training
        ((model, options),) = training.model.items()
        entries = [
            DraftLine("data"),
            *(replace(entry, depth=entry.depth + 1) for entry in self.data),
            DraftLine("model", note="or your own: mine:Net for class Net in mine.py, in this folder"),
            DraftLine(model, options, _MODELS[model], depth=1),
            DraftLine("objective", self.objective, _OBJECTIVES[self.objective]),
            DraftLine("batch", training.batch, "rows per step; a larger batch needs a larger lr"),
            DraftLine("lr", training.lr, "learning rate; try this first: 3 times more or less"),
        ]
        if training.clip is not None:
            entries.append(DraftLine("clip", training.clip, "gradients with a larger norm are scaled down to it"))
        if training.evaluate is not None:
            entries.append(DraftLine("evaluate", training.evaluate))
        entries.append(DraftLine("budget", training.budget, f"or {self._other_budgets()}"))
        title = [
            f"Written by: {shlex.join(command)}",
            self.headline,
            "",
            f"flatout data {shlex.quote(recipe)}    shows the data and how fast it can be read",
            f"flatout run {shlex.quote(recipe)}     trains",
        ]
        return page(title, entries)

    def _other_budgets(self) -> str:
        counted = "2000 steps" if "epoch" in self.training.budget else "3 epochs"
        goals = {"regress": "r2 >= 0.8", "next_token": "loss <= 1.5"}
        return f"{counted}, 10 min, {goals.get(self.objective, 'accuracy >= 0.9')} within 20 epochs"
