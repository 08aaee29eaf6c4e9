"""Models of transformers: the Auto classes, from a name or from a folder that `save_pretrained` wrote."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from flatout.base.errors import ModelError, UsageError
from flatout.models.libraries.wanted import AskedModel, WantedInput, load_library
from flatout.models.parts import head_modules

_MOST = 6
_MODES = {0: "nearest", 2: "bilinear", 3: "bicubic"}  # as Pillow numbers them
_UNSAVED = "pooler"  # part of the backbone that models for masked words are saved without


def build_transformers(wanted: AskedModel) -> nn.Module:
    transformers = _library(wanted.name)
    auto = getattr(transformers, _auto_class(wanted))
    config = transformers.AutoConfig.from_pretrained(wanted.name)
    given = dict(wanted.options)
    if strays := [name for name in given if not hasattr(config, name)]:
        raise UsageError(f"the configuration of {wanted.name} has no {strays[0]!r}; it is a {type(config).__name__}")
    config.update(given)
    if wanted.task != "next_token" and not wanted.keeps_head:
        config.num_labels = wanted.shapes.outputs
        config.problem_type = None  # the loss is that of the objective
    if wanted.shapes.vocabulary is not None:
        _check_vocabulary(wanted, config)
    if not wanted.weights:
        made: nn.Module = auto.from_config(config, dtype=torch.float32)
        return made
    place = wanted.weights if isinstance(wanted.weights, Path) else wanted.name
    with _quiet(transformers):
        model, found = auto.from_pretrained(
            str(place), config=config, dtype=torch.float32, use_safetensors=True, output_loading_info=True,
            ignore_mismatched_sizes=True,
        )  # fmt: skip
    _check_loaded(model, found, str(place), keeps_head=wanted.keeps_head or wanted.task == "next_token")
    if wanted.task != "next_token" and not wanted.keeps_head:
        _new_head(model)
    assert isinstance(model, nn.Module)
    return model


def transformers_input(name: str) -> WantedInput:
    """From its image processor and its tokenizer; each may be absent."""
    _library(name)
    from transformers.image_processing_base import ImageProcessingMixin
    from transformers.utils import cached_file

    quiet: dict[str, Any] = {"_raise_exceptions_for_missing_entries": False, "_raise_exceptions_for_connection_errors": False}
    found: dict[str, Any] = {}
    if cached_file(name, "preprocessor_config.json", **quiet) is not None:
        known, _ = ImageProcessingMixin.get_image_processor_dict(name)
        size, resize = _sizes(known)
        found = {"size": size, "resize": resize, "interpolation": _MODES.get(known.get("resample", 2))}
        if known.get("do_normalize", True) and "image_mean" in known:
            found |= {"mean": tuple(known["image_mean"]), "std": tuple(known["image_std"])}
    tokenizer = cached_file(name, "tokenizer.json", **quiet)
    if tokenizer is not None:
        pad = _library(name).AutoConfig.from_pretrained(name).pad_token_id
        found |= {"tokenizer": Path(tokenizer), "pad": pad}
    return WantedInput(name, **found)


def _library(name: str) -> Any:
    return load_library("transformers", f"model: {{transformers: {name}}}")


def _auto_class(wanted: AskedModel) -> str:
    tokens, task = wanted.shapes.vocabulary is not None, wanted.task
    if task == "next_token":
        return "AutoModelForCausalLM"
    if tokens and task in ("classify", "binary", "multilabel", "regress"):
        return "AutoModelForSequenceClassification"
    if len(wanted.shapes.input_shape) == 3 and task in ("classify", "binary", "multilabel", "regress"):
        return "AutoModelForImageClassification"
    raise UsageError(
        f"model: {{transformers: {wanted.name}}} learns from photos or tokens, with objective classify, binary, multilabel, "
        f"regress or next_token; this is {task} on rows of shape {list(wanted.shapes.input_shape)}. For another task build the "
        "module yourself: model: module:function"
    )


def _check_vocabulary(wanted: AskedModel, config: Any) -> None:
    known = getattr(config, "vocab_size", None)
    assert wanted.shapes.vocabulary is not None
    if known is not None and known < wanted.shapes.vocabulary:
        raise ModelError(
            f"{wanted.name} knows {known} tokens, and the data has {wanted.shapes.vocabulary}: encode the text with the "
            f"model's tokenizer (data: tokenizer: {wanted.name}/tokenizer.json), or write {{{wanted.library}: {{{wanted.name}: "
            f"{{vocab_size: {wanted.shapes.vocabulary}}}}}}} to train it from scratch"
        )


def _check_loaded(model: nn.Module, found: Mapping[str, Any], place: str, *, keeps_head: bool) -> None:
    """transformers fills what the weights lack with random numbers: only the head may lack them."""
    heads = () if keeps_head else head_modules(model)
    missing = [name for name in found["missing_keys"] if _UNSAVED not in name.split(".")]
    missing += [str(name[0] if isinstance(name, tuple) else name) for name in found["mismatched_keys"]]
    lacks = sorted(name for name in missing if not any(name.startswith(f"{head}.") for head in heads))
    if lacks:
        more = f" and {len(lacks) - _MOST} more" if len(lacks) > _MOST else ""
        raise ModelError(
            f"the weights at {place} are not those of a {type(model).__name__}: {len(lacks)} tensors are missing or of "
            f"another shape: {', '.join(lacks[:_MOST])}{more}. Give the folder that belongs to this model, or pretrained: false"
        )


def _new_head(model: Any) -> None:
    """Fresh weights, as the library makes them."""
    for path in head_modules(model):
        for module in model.get_submodule(path).modules():
            module._is_hf_initialized = False
            for parameter in module.parameters(recurse=False):
                parameter._is_hf_initialized = False
            model._init_weights(module)


def _sizes(known: Mapping[str, Any]) -> tuple[int | None, int | None]:
    """The side of the square that the model sees, and the short side before the crop."""
    resized = _side(known.get("size"))
    if known.get("do_center_crop") and (cropped := _side(known.get("crop_size"))):
        return cropped, resized
    if resized is not None and isinstance(known.get("crop_pct"), float):  # ConvNeXt: the size is that of the crop
        return resized, int(resized / known["crop_pct"])
    return resized, resized


def _side(written: Any) -> int | None:
    if isinstance(written, Mapping):
        written = written.get("shortest_edge", written.get("height"))
    return written if isinstance(written, int) else None


@contextmanager
def _quiet(transformers: Any) -> Iterator[None]:
    """transformers reports a new head like a mistake, and shows a bar for each file."""
    logging = transformers.utils.logging
    before, bar = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(before)
        if bar:
            logging.enable_progress_bar()
