"""For a model that can't be written as a graph: the import path of its code, which must be installed where it runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from flatout.base.errors import ModelError
from flatout.base.specs import Spec
from flatout.data.kept import recall
from flatout.packaging.answering import Answering, Preparation
from flatout.packaging.ports import Port
from flatout.recipe.build import build_job
from flatout.recipe.load import recipe_from

FORMAT = 1


@dataclass(frozen=True)
class CodeProgram:
    """Like `Program`, but `module` imports the model's code: `recipe` and `data` are those of the run, as JSON."""

    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    recipe: Mapping[str, Any]
    data: Mapping[str, Any]
    weight_names: tuple[str, ...]

    @property
    def import_path(self) -> str:
        return Spec.parse(self.recipe["model"]).name

    def module(self, weights: Mapping[str, Tensor], device: torch.device) -> nn.Module:
        """ModelError if the code is not installed here."""
        recipe = recipe_from(dict(self.recipe), Path(), stored=True)
        try:
            job = build_job(recipe, data=recall(self.data, recipe.data, Path()))
        except ImportError as error:
            raise ModelError(f"the package needs {self.import_path}, which is not installed here ({error})") from error
        job.model.load_state_dict(dict(weights))
        preparation = Preparation(job.data.fitted)
        names = [port.name for port in self.inputs]
        answering = Answering(job.model.eval(), preparation.inside, job.objective, names)
        return _InOrder(answering, [port.name for port in self.outputs]).eval().to(device)

    def to_json(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "inputs": [port.to_json() for port in self.inputs],
            "outputs": [port.to_json() for port in self.outputs],
            "recipe": dict(self.recipe),
            "data": dict(self.data),
            "weights": list(self.weight_names),
        }

    @classmethod
    def from_json(cls, written: Mapping[str, Any]) -> CodeProgram:
        inputs, outputs = (tuple(Port.from_json(port) for port in written[key]) for key in ("inputs", "outputs"))
        return cls(inputs, outputs, written["recipe"], written["data"], tuple(written["weights"]))


class _InOrder(nn.Module):
    """The outputs as a tuple."""

    def __init__(self, answering: Answering, names: list[str]) -> None:
        super().__init__()
        self.answering, self._names = answering, names

    def forward(self, *columns: Tensor) -> tuple[Tensor, ...]:
        made = self.answering(*columns)
        return tuple(made[name] for name in self._names)


def of_code(
    answering: Answering, rows: Mapping[str, Tensor], recipe: Mapping[str, Any], data: Mapping[str, Any], why: ModelError
) -> tuple[CodeProgram, dict[str, Tensor]]:
    """The program, and its weights. Raises `why`, with a remedy, if the code has no import path."""
    written = recipe.get("model")
    named = isinstance(written, str | Mapping) and ":" in Spec.parse(written).name
    if not named:
        raise ModelError(
            f"{why}. To export it as code, put its class into an installed module and write model: module:Name in the recipe"
        ) from why
    made = answering.answers(dict(rows))
    inputs, outputs = (tuple(_port(name, tensor) for name, tensor in some.items()) for some in (rows, made))
    weights = _named_once(answering.model)
    return CodeProgram(inputs, outputs, recipe, data, tuple(weights)), weights


def _named_once(model: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.detach().clone().contiguous() for name, tensor in model.state_dict().items()}


def _port(name: str, tensor: Tensor) -> Port:
    return Port(name, str(tensor.dtype).removeprefix("torch."), (None, *tensor.shape[1:]))
