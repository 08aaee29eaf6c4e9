"""The program compiled ahead of time by AOTInductor: a shared library that needs no Python in its calls.

The library is made on the machine that runs it and kept in the cache, under the hash of the package, the device and the
version of torch. A package never contains it.
"""

from __future__ import annotations

import os
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from flatout.base.errors import MachineError
from flatout.data.source import Batch
from flatout.packaging.code_program import CodeProgram
from flatout.packaging.onnx_program import ONLY_ONNX, OnnxProgram
from flatout.packaging.program import dtype_named
from flatout.packaging.runtimes.runtime import Parts, Runtime, arithmetic, inputs_of, without_rows


class AheadRuntime(Runtime):
    name: ClassVar[str] = "aotinductor"
    needs_compiler: ClassVar[bool] = True

    def __init__(self, call: Callable[..., Any], parts: Parts) -> None:
        self._call, self._device = call, parts.device
        self._inputs, self._outputs = parts.program.inputs, parts.program.outputs

    @classmethod
    def why_not(cls, parts: Parts) -> str | None:
        if isinstance(parts.program, CodeProgram):
            return "the model can't be written as a graph"
        if isinstance(parts.program, OnnxProgram):
            return ONLY_ONNX
        if shutil.which("g++") is None and shutil.which("clang++") is None:
            return "no C++ compiler: install g++"
        return "there is no cache folder to keep the compiled library in" if parts.compiled is None else None

    @classmethod
    def load(cls, parts: Parts) -> AheadRuntime:
        assert parts.compiled is not None
        library = parts.compiled / f"{_machine(parts)}.pt2"
        if not library.exists():
            _build(parts, library)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return cls(torch._inductor.aoti_load_package(str(library)), parts)

    def run(self, rows: Batch) -> dict[str, Tensor]:
        given = [column.contiguous() for column in inputs_of(self._inputs, rows, self._device)]
        if not len(given[0]):
            return without_rows(self._outputs, self._device)
        with torch.inference_mode():
            made = self._call(*given)
        return {port.name: output for port, output in zip(self._outputs, made, strict=True)}


def _machine(parts: Parts) -> str:
    from flatout.machine.facts import fingerprint, read_facts

    return f"{fingerprint(read_facts())}-{str(parts.device).replace(':', '')}-{parts.precision}"


def _build(parts: Parts, library: Path) -> None:
    module = parts.program.module(parts.weights, parts.device)
    given = tuple(
        torch.ones([4 if size is None else size for size in port.shape], dtype=dtype_named(port.dtype), device=parts.device)
        for port in parts.program.inputs
    )
    any_size = torch.export.Dim.DYNAMIC
    shapes = tuple({place: any_size for place, size in enumerate(port.shape) if size is None} for port in parts.program.inputs)
    library.parent.mkdir(parents=True, exist_ok=True)
    aside = library.with_name(f".{os.getpid()}.{library.name}")
    try:
        with warnings.catch_warnings(), torch.no_grad(), arithmetic(parts.precision, parts.device):
            warnings.simplefilter("ignore")
            exported = torch.export.export(module, given, dynamic_shapes=shapes, strict=False)
            options = {"freezing": True} if parts.device.type == "cpu" else {}
            torch._inductor.aoti_compile_and_package(exported, package_path=str(aside), inductor_configs=options)
        os.replace(aside, library)
    except Exception as error:
        why = f"{type(error).__name__}: {error}".partition("\n")[0][:200]
        raise MachineError(f"AOTInductor could not compile the program: {why}") from error
    finally:
        aside.unlink(missing_ok=True)
