"""What is asked of a library: which model, for which task and data, with which weights."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flatout.base.errors import FlatoutError, MissingExtra, ModelError
from flatout.base.shapes import Shapes
from flatout.models.model_spec import ModelSpec


@dataclass(frozen=True)
class AskedModel:
    """`weights`: True for the library's own, a name of them, or a folder in the library's format; None: random ones."""

    library: str
    name: str
    options: Mapping[str, Any]
    shapes: Shapes
    task: str
    weights: bool | str | Path | None
    keeps_head: bool


@dataclass(frozen=True)
class WantedInput:
    """What a pretrained model expects of its inputs; None where the library does not say."""

    model: str
    size: int | None = None
    resize: int | None = None  # of the short side, before the crop
    interpolation: str | None = None
    scale: float = 1 / 255
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    tokenizer: Path | None = None
    pad: int | None = None


def load_library(name: str, need: str) -> Any:
    """Also for a library that is installed and can't be imported."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        if isinstance(error, ModuleNotFoundError) and error.name == name:
            raise MissingExtra(name, "models", need) from error
        raise ModelError(f"{need} needs {name}, which is installed and can't be imported: {error}") from error
    except Exception as error:  # a wheel for another version of torch may raise anything
        raise ModelError(
            f"{need} needs {name}, which is installed and can't be imported ({type(error).__name__}: {first_line(error)}): "
            "install the version that belongs to this torch"
        ) from error


@contextmanager
def loading(spec: ModelSpec) -> Iterator[None]:
    """Errors of a library that can't load its weights or configuration say what to do."""
    try:
        yield
    except FlatoutError:
        raise
    except Exception as error:
        name = spec.architecture.name
        raise ModelError(
            f"{spec.library} can't load {name!r}: {type(error).__name__}: {first_line(error)}. Is the name right, and is there "
            f"a network? Without one, bring the files here and give their path: {_offline(spec)}"
        ) from error


def _offline(spec: ModelSpec) -> str:
    if spec.library == "transformers":
        return "{transformers: FOLDER, pretrained: true}, a folder that save_pretrained wrote"
    return f"{{{spec.library}: {spec.architecture.name}, pretrained: FILE.safetensors}}"


def first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]
