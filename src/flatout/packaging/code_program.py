"""For a model that can't be written as a graph: the import path of its code, which must be installed where it runs."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from flatout.base.errors import FlatoutError, ModelError, UsageError
from flatout.data.kept import recall
from flatout.data.workers.parcel import RECIPE_MODULE
from flatout.models.model_spec import ModelSpec
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
        return ModelSpec.parse(self.recipe["model"]).spec.name

    def module(self, weights: Mapping[str, Tensor], device: torch.device) -> nn.Module:
        """ModelError if the code is not installed here, or is none of a model."""
        _check_imports(self.recipe)
        recipe = recipe_from(dict(self.recipe), Path(), stored=True)
        try:
            job = build_job(recipe, data=recall(self.data, recipe.data, Path()), trained=True)
        except UsageError as error:
            if isinstance(error.__cause__, ImportError):
                raise ModelError(f"the package needs {self.import_path}, which is not installed here: {error}") from error
            raise
        try:
            job.model.load_state_dict(dict(weights))
        except RuntimeError as error:
            why = str(error).replace("\n\t", " ")
            raise ModelError(f"{self.import_path} is not the code that the package was exported with: {why}") from error
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


def _check_imports(recipe: Mapping[str, Any]) -> None:
    """The names come from a file, and what they name is called: at least they are not functions of Python itself."""
    for key in ("model", "objective", "optimizer"):
        written = recipe.get(key)
        name = _name_in(written) if isinstance(written, str | Mapping) else ""
        if ":" in name and name.partition(":")[0].partition(".")[0] in sys.stdlib_module_names:
            raise ModelError(f"the package names {name!r} as its {key}, which is a part of Python and not a model's code")


class _InOrder(nn.Module):
    """The outputs as a tuple."""

    def __init__(self, answering: Answering, names: list[str]) -> None:
        super().__init__()
        self.answering, self._names = answering, names

    def forward(self, *columns: Tensor) -> tuple[Tensor, ...]:
        made = self.answering(*columns)
        return tuple(made[name] for name in self._names)


@dataclass(frozen=True)
class CapturedCode:
    program: CodeProgram
    weights: dict[str, Tensor]


def of_code(
    answering: Answering, rows: Mapping[str, Tensor], recipe: Mapping[str, Any], data: Mapping[str, Any], why: ModelError
) -> CapturedCode:
    """Raises `why`, with a remedy, if other processes can't import the code."""
    if not _has_import_path(recipe.get("model"), True) or not _has_import_path(recipe.get("objective"), False):
        raise _with_remedy(why) from why
    made = answering.answers(dict(rows))
    inputs, outputs = (tuple(_port(name, tensor) for name, tensor in some.items()) for some in (rows, made))
    weights = _named_once(answering.model)
    program = CodeProgram(inputs, outputs, recipe, data, tuple(weights))
    try:
        program.module(weights, torch.device("cpu"))
    except FlatoutError as error:  # an object that the name does not describe, such as a module that was built already
        raise _with_remedy(why) from error
    return CapturedCode(program, weights)


def _has_import_path(written: Any, must_be_code: bool) -> bool:
    """Whether it is written as `module:name`, and the module is a file that others can install too."""
    if not isinstance(written, str | Mapping):
        return not must_be_code
    module, colon, name = _name_in(written).partition(":")
    if not colon:
        return not must_be_code
    return module not in ("__main__", RECIPE_MODULE) and "<" not in name


def _name_in(written: str | Mapping[str, Any]) -> str:
    """The name of a part; a model may have keys next to its name."""
    return ModelSpec.parse(written).spec.name


def _with_remedy(why: ModelError) -> ModelError:
    return ModelError(
        f"{why}. To export it as code, put its class into an installed module and write model: module:Name in the recipe"
    )


def _named_once(model: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.detach().clone().contiguous() for name, tensor in model.state_dict().items()}


def _port(name: str, tensor: Tensor) -> Port:
    return Port(name, str(tensor.dtype).removeprefix("torch."), (None, *tensor.shape[1:]))
