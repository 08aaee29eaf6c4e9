"""Build an nn.Module from a recipe's model: a built-in name, `package.module:Name`, a callable, or a module."""

from __future__ import annotations

import functools
import hashlib
import inspect
import json
import os
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import nn

from flatout.base.errors import FlatoutError, ModelError
from flatout.base.shapes import Shapes
from flatout.base.source import lasting_text, source_text
from flatout.base.specs import Spec, import_named, pick
from flatout.base.units import show_bytes
from flatout.models.adapters import with_lora
from flatout.models.convnet import convnet
from flatout.models.dataless import LOOKS_AT_NUMBERS, WeightsBudget, fake_copy, is_dataless, sparing, weights_bytes
from flatout.models.facts import parameter_count
from flatout.models.finetune import load_pretrained
from flatout.models.gpt import gpt
from flatout.models.keras_models import adapted, check_backend, copied, names_from_the_start
from flatout.models.libraries.build import Start, build_of_library, weights_path
from flatout.models.mlp import mlp
from flatout.models.model_spec import ModelSpec

Model = Spec | str | Mapping[str, Any] | Callable[..., nn.Module] | nn.Module

_PACKAGE = Path(__file__).parent.parent
BUILDERS: Mapping[str, Callable[..., nn.Module]] = {"mlp": mlp, "convnet": convnet, "gpt": gpt}


_FROM_SCRATCH = Start()


def build(
    model: Model, shapes: Shapes, seed: int, budget: WeightsBudget | None = None, start: Start = _FROM_SCRATCH
) -> nn.Module:
    """The same seed gives the same weights. The caller's random state and the caller's module are not changed.

    `budget`: for a model that is only inspected, not trained. Tensors beyond the budget have no data.
    """
    check_backend(model)
    make = functools.partial(_copied, model, budget) if isinstance(model, nn.Module) else _maker(model, shapes, start)
    try:
        with _seeded(seed), names_from_the_start(), sparing(budget) if budget is not None else nullcontext():
            built = make()
    except FlatoutError:
        raise
    except Exception as error:
        if budget is not None and budget.spent and isinstance(error, LOOKS_AT_NUMBERS):
            raise ModelError(
                f"the model {describe(model)} has more than {show_bytes(budget.limit_bytes)} of weights, so it is explained "
                f"without their values, but its constructor uses them: {type(error).__name__}: {_first_line(error)}"
                f"{_own_line(error)}. Let its constructor compute only with the values of small tensors"
            ) from error
        how = " without data (it is large)" if budget is not None and budget.spent else ""
        raise ModelError(f"the model {describe(model)} can't be built{how}: {type(error).__name__}: {error}") from error
    check_backend(built)
    if not isinstance(built, nn.Module):
        raise ModelError(f"the model {describe(model)} must return a torch.nn.Module, got {type(built).__name__}")
    return adapted(built)


def _copied(model: nn.Module, budget: WeightsBudget | None) -> nn.Module:
    if is_dataless(model) or (budget is not None and weights_bytes(model) > budget.limit_bytes):
        return fake_copy(model)[0]
    return copied(model)


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]


def _own_line(error: Exception) -> str:
    """The last line of user code in the traceback; "" if there is none."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not _is_of_a_library(frame.filename)]
    return f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""


def _is_of_a_library(file: str) -> bool:
    return f"{os.sep}torch{os.sep}" in file or Path(file).is_relative_to(_PACKAGE)


def describe(model: Model) -> Any:
    """For JSON and people: the spec as written, or the location of the code."""
    if isinstance(model, nn.Module):
        return {_path(type(model)): {"parameters": parameter_count(model)}}
    return _path(model) if _is_maker(model) else ModelSpec.parse(model).written()


def source_hash(model: Model, *, weights: bool = True) -> str:
    """Changes when the model changes: its name and options, the user's code behind it, or the weights of an instance."""
    digest = hashlib.sha256(json.dumps(describe(model), sort_keys=True, default=lasting_text).encode())
    for code in _code_of(model):
        digest.update(source_text(code).encode())
    if weights and isinstance(model, nn.Module):
        for name, value in model.state_dict().items():
            if isinstance(value, torch.Tensor):
                digest.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
                digest.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def code_text(model: Model) -> str:
    """The user's code behind the model, with the values it uses."""
    return "\n".join(source_text(code, values=True) for code in _code_of(model))


def _code_of(model: Model) -> list[object]:
    if isinstance(model, nn.Module):
        return sorted({type(module) for module in model.modules()}, key=_path)
    if _is_maker(model):
        return [model]
    name = ModelSpec.parse(model).spec.name
    return [import_named(name, "model")] if ":" in name else []


def _maker(model: Model, shapes: Shapes, start: Start) -> Callable[[], Any]:
    if callable(model):
        required = _required(model)
        if required:
            raise ModelError(
                f"the model {_path(model)} is called without arguments but needs {', '.join(required)}: "
                f"pass lambda: {_path(model).rpartition(':')[2]}(...)"
            )
        return model
    asked = ModelSpec.parse(model)
    own = functools.partial(build_of_library, asked, shapes, start) if asked.library else _own_maker(asked.spec, shapes)
    return functools.partial(_started, own, asked, shapes, start)


def _started(make: Callable[[], Any], asked: ModelSpec, shapes: Shapes, start: Start) -> Any:
    """The model with the weights and adapters that it starts with."""
    built = make()
    if not isinstance(built, nn.Module):
        return built  # `build` says what is wrong
    path = weights_path(asked, start.folder)
    if path is not None and start.weights:
        load_pretrained(built, path, keeps_head=asked.keeps_head or start.task == "next_token")
    if asked.lora is not None:
        return with_lora(built, asked.lora, start.task, tokens=shapes.vocabulary is not None)
    return built


def _own_maker(spec: Spec, shapes: Shapes) -> Callable[[], Any]:
    maker = import_named(spec.name, "model") if ":" in spec.name else pick(BUILDERS, spec.name, "model")
    if not callable(maker):
        raise ModelError(
            f"the model {spec.name!r} must be a class or function that returns a torch.nn.Module, got {type(maker).__name__}"
        )
    if ":" not in spec.name:
        spec = spec.fitted_to(maker)
    accepted = inspect.signature(maker).parameters
    known = {name: value for name, value in vars(shapes).items() if value is not None}
    given = {name: value for name, value in known.items() if name in accepted and name not in spec.options}
    missing = [name for name in _required(maker) if name not in given and name not in spec.options]
    if spec.value is None and missing:
        options = ", ".join(f"{name}: ..." for name in missing)
        raise ModelError(
            f"the model {spec.name!r} needs {', '.join(missing)}, which this data does not give (it has {', '.join(known)}): "
            f"write {{{spec.name}: {{{options}}}}}, or use matching data, such as text for gpt"
        )
    return functools.partial(spec.call, maker, **given)


def _required(maker: Callable[..., Any]) -> list[str]:
    parameters = inspect.signature(maker).parameters.values()
    return [p.name for p in parameters if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]


def _is_maker(model: object) -> bool:
    return callable(model) and not isinstance(model, nn.Module)


def _path(thing: Any) -> str:
    while isinstance(thing, functools.partial):
        thing = thing.func
    named = thing if isinstance(thing, type) or inspect.isroutine(thing) else type(thing)
    return f"{named.__module__}:{named.__qualname__}"


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    devices = list(range(torch.cuda.device_count())) if torch.cuda.is_initialized() else []  # type: ignore[no-untyped-call]
    with torch.random.fork_rng(devices):
        # torch.manual_seed would also set a seed for a CUDA device that has not started yet
        torch.default_generator.manual_seed(seed)
        if devices:
            torch.cuda.manual_seed_all(seed)
        yield
