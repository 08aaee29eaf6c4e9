"""A Python object for worker processes: pickled once, with its arrays in memory that all workers map.

Pages are copied only when a worker writes to them, so an array of gigabytes is in memory once, not once per worker.
"""

from __future__ import annotations

import ast
import io
import mmap
import os
import pickle
import re
import sys
import threading
import types
import weakref
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from flatout.data.workers.arena import aligned, open_memory
from flatout.data.workers.definitions import needed_code

RECIPE_MODULE, SOURCE_ATTRIBUTE = "flatout_recipe", "__recipe_source__"  # mark a recipe in Python


class Unpackable(Exception):
    """The object can't be sent to another process; the message says why."""


@dataclass(frozen=True)
class Definitions:
    """The source of a module that can't be imported by its name, and the names that are needed from it."""

    module: str
    path: str
    source: str
    names: tuple[str, ...]


@dataclass(frozen=True)
class Contents:
    """How to unpack a parcel. `main`: how to import the script that started everything, if the object needs it. `recipe`: what
    it needs from a recipe's file, which can't be imported."""

    size: int
    spans: tuple[tuple[int, int], ...]  # of the pickle, then of each array
    main: dict[str, str] | None
    recipe: Definitions | None = None


class Parcel:
    """Pickled immediately, so later changes to the object have no effect; arrays are copied when it is first sent."""

    def __init__(self, packed: object) -> None:
        buffers: list[pickle.PickleBuffer] = []
        stream = io.BytesIO()
        pickler = _Pickler(stream, protocol=5, buffer_callback=buffers.append)
        try:
            pickler.dump(packed)
        except Exception as error:  # a user's __reduce__ and __getstate__ may raise anything
            raise Unpackable(f"it can't be pickled: {_without_addresses(error)}") from error
        self._main = _way_to_main(sorted(pickler.from_main)) if pickler.from_main else None
        self._recipe = _of_recipe(sorted(pickler.from_recipe)) if pickler.from_recipe else None
        self._pieces = [stream.getbuffer(), *(buffer.raw() for buffer in buffers)]
        self._sealed: tuple[int, Contents] | None = None
        self._lock = threading.Lock()

    def sealed(self) -> tuple[int, Contents]:
        """A descriptor of its memory, and what is where in it."""
        with self._lock:
            if self._sealed is None:
                self._sealed = self._seal()
                self._pieces.clear()
            return self._sealed

    def _seal(self) -> tuple[int, Contents]:
        spans, end = [], 0
        for piece in self._pieces:
            spans.append((end, piece.nbytes))
            end = aligned(end + piece.nbytes)
        descriptor = open_memory(end)
        weakref.finalize(self, os.close, descriptor)
        with mmap.mmap(descriptor, end) as memory:
            for (start, size), piece in zip(spans, self._pieces, strict=True):
                memory[start : start + size] = piece.cast("B")
        return descriptor, Contents(end, tuple(spans), self._main, self._recipe)


def unpack(descriptor: int, contents: Contents) -> Any:
    """In a worker, after the script in `main` was imported."""
    if contents.recipe is not None:
        _define(contents.recipe)
    memory = memoryview(mmap.mmap(descriptor, contents.size, flags=mmap.MAP_PRIVATE))
    pickled, *arrays = (memory[start : start + size] for start, size in contents.spans)
    return pickle.loads(pickled, buffers=arrays)


class _Pickler(pickle.Pickler):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.from_main: set[str] = set()
        self.from_recipe: set[str] = set()

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, type | types.FunctionType) and value.__module__ == "__main__":
            self.from_main.add(value.__qualname__)
        if isinstance(value, type | types.FunctionType) and value.__module__ == RECIPE_MODULE:
            self.from_recipe.add(value.__qualname__.partition(".")[0])
        if type(value) is Tensor and _is_plain(value):
            content = value.detach().contiguous().reshape(-1).view(torch.uint8).numpy()
            return _tensor_of, (content, value.dtype, tuple(value.shape))
        return NotImplemented


def _is_plain(tensor: Tensor) -> bool:
    odd = tensor.requires_grad or tensor.is_conj() or tensor.is_neg() or tensor.is_quantized or tensor.is_nested
    return tensor.device.type == "cpu" and tensor.layout == torch.strided and tensor.numel() > 0 and not odd


def _tensor_of(content: Any, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    return torch.from_numpy(content).view(dtype).reshape(shape)


def _of_recipe(names: list[str]) -> Definitions:
    module = sys.modules[RECIPE_MODULE]
    source = getattr(module, SOURCE_ATTRIBUTE, None)
    if source is None:
        raise Unpackable(f"{names[0]} is defined in a recipe whose source is unknown: move it to a separate module")
    return Definitions(RECIPE_MODULE, str(module.__file__), source, tuple(names))


def _define(given: Definitions) -> None:
    """Only the definitions: the rest of the file builds data and models, which a worker does not need."""
    module = types.ModuleType(given.module)
    module.__file__ = given.path
    sys.modules[given.module] = module
    exec(compile(needed_code(given.source, given.names), given.path, "exec"), vars(module))


def _way_to_main(names: list[str]) -> dict[str, str]:
    main = sys.modules["__main__"]
    path = getattr(main, "__file__", None)
    defined = f"{names[0]} is defined in"
    move = "move it to a separate module"
    if path is None or not Path(path).is_file():
        raise Unpackable(f"{defined} a notebook or an interactive session, which other processes can't import: {move}")
    if not _has_guard(Path(path)):
        guard = "if __name__ == '__main__':"
        raise Unpackable(
            f"{defined} {Path(path).name}, which has no `{guard}`, so importing it runs everything: {move}, or add it"
        )
    spec = getattr(main, "__spec__", None)
    return {"init_main_from_path": str(Path(path).resolve())} if spec is None else {"init_main_from_name": spec.name}


def _has_guard(script: Path) -> bool:
    try:
        body = ast.parse(script.read_bytes()).body
    except (SyntaxError, ValueError):
        return False
    tests = (statement.test for statement in body if isinstance(statement, ast.If))
    return any(isinstance(part, ast.Name) and part.id == "__name__" for test in tests for part in ast.walk(test))


def _without_addresses(error: Exception) -> str:
    said = re.sub(r" at 0x[0-9a-f]+", "", str(error)).splitlines()
    return said[0] if said else type(error).__name__
