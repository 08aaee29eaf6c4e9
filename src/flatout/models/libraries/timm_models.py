"""Models of timm: `timm.create_model`, and its configuration of the pretrained weights."""

from __future__ import annotations

from typing import Any

from torch import nn

from flatout.base.errors import UsageError, did_you_mean
from flatout.models.libraries.wanted import AskedModel, WantedInput, load_library


def build_timm(wanted: AskedModel) -> nn.Module:
    timm = _checked(wanted.name)
    options = dict(wanted.options)
    if not wanted.keeps_head:
        options["num_classes"] = wanted.shapes.outputs
    if len(wanted.shapes.input_shape) == 3 and wanted.shapes.input_shape[0] != 3:
        options.setdefault("in_chans", wanted.shapes.input_shape[0])
    model: Any = timm.create_model(wanted.name, pretrained=bool(wanted.weights), **options)
    if wanted.weights and not wanted.keeps_head:
        model.reset_classifier(wanted.shapes.outputs)  # also where the number of classes is that of the weights
    assert isinstance(model, nn.Module)
    return model


def timm_input(name: str) -> WantedInput | None:
    known: Any = _checked(name).get_pretrained_cfg(name)
    if known is None:
        return None
    size = int(known.input_size[-1])
    share = float(known.crop_pct or 1.0)
    return WantedInput(name, size, int(size / share), known.interpolation, mean=tuple(known.mean), std=tuple(known.std))


def _checked(name: str) -> Any:
    timm = load_library("timm", f"model: {{timm: {name}}}")
    if not timm.is_model(name.partition(".")[0]) and not name.startswith(("hf-hub:", "hf_hub:", "local-dir:")):
        raise UsageError(
            f"timm has no model {name!r}; {did_you_mean(name, timm.list_models(_alike(name)) or timm.list_models())}"
        )
    return timm


def _alike(name: str) -> str:
    """timm has more than a thousand models: a list of those of the same family can be read."""
    return f"*{name[:5]}*"
