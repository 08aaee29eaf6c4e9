"""A model of another library as a recipe asks for it, and what its inputs have to look like."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from torch import nn

from flatout.base.errors import ModelError
from flatout.base.shapes import Shapes
from flatout.models.libraries.wanted import AskedModel, WantedInput, loading
from flatout.models.model_spec import ModelSpec


@dataclass(frozen=True)
class Start:
    """What a model needs besides its shapes: the objective's name, where relative paths begin, and whether weights are loaded.

    Without `weights` the model is built to be looked at, or to get weights that were trained before.
    """

    task: str = ""
    folder: Path = Path()
    weights: bool = True


def build_of_library(spec: ModelSpec, shapes: Shapes, start: Start) -> nn.Module:
    """With the library's own weights, where the recipe asks for them; weights in a file are loaded by `load_pretrained`."""
    wanted = AskedModel(
        str(spec.library),
        _place(spec, start.folder),
        spec.architecture.options,
        shapes,
        start.task,
        _own_weights(spec, start),
        spec.keeps_head,
    )
    with loading(spec):
        return _builder(wanted.library)(wanted)


def weights_path(spec: ModelSpec, folder: Path) -> Path | None:
    """Of weights in a file or a run's folder; None if the library finds them itself, or there are none."""
    if not isinstance(spec.pretrained, str):
        return None
    path = (folder / spec.pretrained).expanduser()
    if spec.library == "torchvision" and not path.exists() and spec.pretrained.isidentifier():
        return None  # the name of a set of weights
    return None if spec.library == "transformers" and _is_of_transformers(path) else path


def input_of(spec: ModelSpec, folder: Path) -> WantedInput | None:
    """What the weights were trained with, by the library's own configuration; None if there is none."""
    name = spec.architecture.name
    if spec.pretrained is False:
        return None
    with loading(spec):
        if spec.library == "timm":
            from flatout.models.libraries.timm_models import timm_input

            return timm_input(name)
        if spec.library == "torchvision":
            from flatout.models.libraries.torchvision_models import torchvision_input

            return torchvision_input(name, spec.pretrained if weights_path(spec, folder) is None else True)
        from flatout.models.libraries.transformers_models import transformers_input

        return transformers_input(_place(spec, folder))


def _own_weights(spec: ModelSpec, start: Start) -> bool | str | Path | None:
    if not start.weights or spec.pretrained is False:
        return None
    if spec.pretrained is True:
        return True
    if spec.library == "transformers" and _is_of_transformers(start.folder / spec.pretrained):
        return start.folder / spec.pretrained
    return spec.pretrained if weights_path(spec, start.folder) is None else None


def _is_of_transformers(path: Path) -> bool:
    return (path / "config.json").is_file()


def _place(spec: ModelSpec, folder: Path) -> str:
    """A folder relative to the recipe, or a name that the library knows."""
    name = spec.architecture.name
    if spec.library != "transformers":
        return name
    path = (folder / name).expanduser()
    if path.is_dir():
        return str(path)
    if name[0] in "./~" or name.count("/") > 1:  # never a name of the library's: it would be looked for in the network
        raise ModelError(f"model: there is no folder {path}: expected one of save_pretrained, or a name such as owner/model")
    return name


def _builder(library: str) -> Callable[[AskedModel], nn.Module]:
    if library == "timm":
        from flatout.models.libraries.timm_models import build_timm

        return build_timm
    if library == "torchvision":
        from flatout.models.libraries.torchvision_models import build_torchvision

        return build_torchvision
    from flatout.models.libraries.transformers_models import build_transformers

    return build_transformers
