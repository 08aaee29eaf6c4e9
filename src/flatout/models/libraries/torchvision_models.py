"""Classification models of torchvision: `get_model`, its sets of weights, and their `transforms()`."""

from __future__ import annotations

from typing import Any

from torch import nn

from flatout.base.errors import ModelError, UsageError, did_you_mean
from flatout.models.libraries.wanted import AskedModel, WantedInput, load_library


def build_torchvision(wanted: AskedModel) -> nn.Module:
    models = _checked(wanted.name)
    weights = None if not wanted.weights else torchvision_weights(wanted.name, wanted.weights)
    model: nn.Module = models.get_model(wanted.name, weights=weights, **wanted.options)
    if not wanted.keeps_head:
        _new_head(model, wanted.shapes.outputs)
    return model


def torchvision_input(name: str, weights: object) -> WantedInput | None:
    how: Any = torchvision_weights(name, weights).transforms()
    mode = str(getattr(how.interpolation, "value", how.interpolation))
    size, resize = int(how.crop_size[0]), int(how.resize_size[0])
    return WantedInput(name, size, resize, mode, mean=tuple(how.mean), std=tuple(how.std))


def torchvision_weights(name: str, written: object) -> Any:
    """One of the library's sets of weights: DEFAULT for `pretrained: true`."""
    known: Any = _checked(name).get_model_weights(name)
    wanted = written if isinstance(written, str) else "DEFAULT"
    if wanted not in known.__members__:
        raise UsageError(f"torchvision has no weights {wanted!r} of {name}; {did_you_mean(wanted, known.__members__)}")
    return known[wanted]


def _checked(name: str) -> Any:
    need = f"model: {{torchvision: {name}}}"
    load_library("torchvision", need)
    models = load_library("torchvision.models", need)
    known = models.list_models(module=models)  # without those for detection, segmentation and video
    if name not in known:
        raise UsageError(f"torchvision has no model {name!r} for classification; {did_you_mean(name, known)}")
    return models


def _new_head(model: nn.Module, outputs: int) -> None:
    """Replaces the last layer, which is linear in all of them but squeezenet."""
    last = [(path, module) for path, module in model.named_modules() if isinstance(module, nn.Linear | nn.Conv2d)][-1:]
    for path, module in last:
        fresh: nn.Module
        if isinstance(module, nn.Linear):
            fresh = nn.Linear(module.in_features, outputs, bias=module.bias is not None)
        else:
            fresh = nn.Conv2d(module.in_channels, outputs, kernel_size=1)
        model.set_submodule(path, fresh)
        return
    raise ModelError("the model has no linear layer to replace by a new head: write head: keep")
