"""Data as a pretrained model expects it: what the recipe leaves open is taken from the model's own configuration.

Photos get its size, resizing and normalization; arrays of bytes its normalization; text its tokenizer. These become part of
what is fitted on the data, so predictions, packages and servers use them too.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from flatout.base.errors import FlatoutError
from flatout.data.attention_mask import AttentionMask
from flatout.data.augment.crops import CenterCrop
from flatout.data.data import Data
from flatout.data.fitted.fitted import Fitted
from flatout.data.fitted.token_rows import SequenceHost
from flatout.data.normalize import Normalize
from flatout.models.libraries.build import input_of, weights_path
from flatout.models.libraries.wanted import WantedInput
from flatout.models.model_spec import ModelSpec

_OPEN = {
    "images": ("size", "resize", "interpolation", "normalize"), "arrays": ("normalize",), "digits": ("normalize",),
    "text": ("tokenizer",), "sequences": ("tokenizer", "pad"),
}  # fmt: skip
_TOKENS = ("tokenizer", "vocabulary")


def takes_its_size_from(model: Any) -> bool:
    """Whether photos may leave their size to the model."""
    try:
        return not callable(model) and ModelSpec.parse(model).pretrained is not False
    except FlatoutError:
        return False  # reported as a mistake of the model


def filled(written: Any, model: Any, folder: Path) -> tuple[Any, WantedInput | None]:
    """The data with the options that the recipe left open, and what the model expects."""
    if callable(model) or not isinstance(written, str | Mapping):
        return written, None
    spec = ModelSpec.parse(model)
    options = {written: None} if isinstance(written, str) else dict(written)
    kind = next((name for name in _OPEN if name in options and not (name == "text" and "table" in options)), None)
    if kind is None or spec.pretrained is False or all(name in options for name in _OPEN[kind]):
        return written, None
    wanted = _of_run(spec, folder) if spec.library is None else input_of(spec, folder)
    if wanted is None:
        return written, None
    found: dict[str, Any] = {}
    if kind == "images":
        found = _for_photos(wanted, options.get("size"))
    elif kind in ("text", "sequences") and wanted.tokenizer is not None and not set(options) & {*_TOKENS}:
        found = {"tokenizer": str(wanted.tokenizer)}
        found |= {"pad": wanted.pad} if kind == "sequences" and wanted.pad is not None else {}
        found |= {"special_tokens": True} if kind == "sequences" and "label" in options else {}
    more = {name: value for name, value in found.items() if name not in options}
    return ({**options, **more} if more else written), wanted


def normalized_for(data: Data, wanted: WantedInput) -> tuple[Data, Normalize | None]:
    """Arrays of bytes that no step normalizes get the model's normalization; other differences become a note."""
    if wanted.mean is None or wanted.std is None or "x" not in data.train.schema:
        return data, None
    mine = [step for step in data.prepare if isinstance(step, Normalize)]
    column = data.train.schema["x"]
    if mine or column.dtype != torch.uint8 or len(column.shape) not in (2, 3):
        if not any(_is_same(step, wanted) for step in mine):
            how = "normalizes in another way" if mine else "is not normalized"
            data = replace(data, notes=(*data.notes, f"{wanted.model} was trained on {_shown(wanted)}; this data {how}"))
        return data, None
    step = _for_channels(wanted, column.shape[0] if len(column.shape) == 3 else 1)
    return replace(data, prepare=(*data.prepare, step)), step


def masked_for(data: Data, model: Any) -> Data:
    """Rows of different lengths get a mask for models of transformers."""
    host = data.host
    if callable(model) or ModelSpec.parse(model).library != "transformers" or not isinstance(host, SequenceHost):
        return data
    masked = any(isinstance(step, AttentionMask) for step in data.prepare)
    return data if masked else replace(data, prepare=(*data.prepare, AttentionMask(host.pad)))


def inputs_for(data: Data, model: Any) -> Any:
    """Models of transformers take their inputs by name."""
    if callable(model) or ModelSpec.parse(model).library != "transformers":
        return list(data.inputs)
    if data.vocabulary is None:
        return {"pixel_values": "x"}
    mask = {"attention_mask": "mask"} if "mask" in data.schema() else {}
    return {"input_ids": "x", **mask}


def described(wanted: WantedInput) -> str:
    """A sentence for the user."""
    parts = [f"{wanted.size} pixels" if wanted.size else "", f"tokenizer {wanted.tokenizer.name}" if wanted.tokenizer else ""]
    parts += [_shown(wanted)] if wanted.mean is not None else []
    known = ", ".join(part for part in parts if part)
    return f"prepared as {wanted.model} expects: {known}" if known else ""


def _for_photos(wanted: WantedInput, size: Any) -> dict[str, Any]:
    found: dict[str, Any] = {} if wanted.size is None else {"size": wanted.size}
    if wanted.resize is not None and wanted.size is not None:
        own = size if isinstance(size, int) and size > 0 else wanted.size
        found["resize"] = max(own, round(own * wanted.resize / wanted.size))
    if wanted.interpolation in ("bilinear", "bicubic"):
        found["interpolation"] = wanted.interpolation
    if wanted.mean is not None and wanted.std is not None:
        found["normalize"] = {"scale": wanted.scale, "mean": list(wanted.mean), "std": list(wanted.std)}
    return found


def _of_run(spec: ModelSpec, folder: Path) -> WantedInput | None:
    """What a former run fitted on its data."""
    place = weights_path(spec, folder)
    try:
        fitted = Fitted.from_json(json.loads(((place or Path()) / "data.json").read_text())["fitted"])
    except (FlatoutError, OSError, ValueError, LookupError, TypeError):
        return None  # a file of weights, or a run of which no file tells: whether weights exist is checked when they are loaded
    crops = [step for step in fitted.device.steps if isinstance(step, CenterCrop)]
    norms = [step for step in fitted.device.steps if isinstance(step, Normalize)]
    found = WantedInput(str(spec.pretrained))
    if crops:
        found = replace(found, size=crops[0].size, resize=crops[0].resize)
    elif "x" in fitted.schema and len(fitted.schema["x"].shape) == 3:
        found = replace(found, size=fitted.schema["x"].shape[-1])
    if norms:
        found = replace(found, scale=norms[0].scale, mean=norms[0].mean, std=norms[0].std)
    return found


def _for_channels(wanted: WantedInput, channels: int) -> Normalize:
    mean, std = wanted.mean or (0.0,), wanted.std or (1.0,)
    if channels == 1 and len(mean) > 1:
        mean, std = (sum(mean) / len(mean),), (sum(std) / len(std),)
    return Normalize(wanted.scale, mean, std)


def _is_same(step: Normalize, wanted: WantedInput) -> bool:
    return (step.scale, step.mean, step.std) == (wanted.scale, wanted.mean, wanted.std)


def _shown(wanted: WantedInput) -> str:
    mean, std = (", ".join(f"{value:.3g}" for value in values or ()) for values in (wanted.mean, wanted.std))
    return f"mean {mean}, deviation {std}"
