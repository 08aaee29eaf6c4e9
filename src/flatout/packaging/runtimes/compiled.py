"""The program compiled by torch.compile. On a GPU each batch size is one CUDA graph; a batch is padded to the next size."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from flatout.data.source import Batch
from flatout.engine.precision import autocast
from flatout.packaging.runtimes.runtime import Parts, Runtime, inputs_of, without_rows

LARGEST = 512  # rows in one CUDA graph; a larger batch is run in several

Outputs = tuple[Tensor, ...]


class CompiledRuntime(Runtime):
    name: ClassVar[str] = "compiled"
    needs_compiler: ClassVar[bool] = True

    def __init__(self, module: nn.Module, parts: Parts) -> None:
        self._device = parts.device
        self._inputs, self._outputs = parts.program.inputs, parts.program.outputs
        self._call = _compiled(module, parts)
        self._graphs: dict[tuple[tuple[int, ...], ...], _Graph] = {}

    @classmethod
    def why_not(cls, parts: Parts) -> str | None:
        if parts.device.type == "cpu" and shutil.which("g++") is None and shutil.which("clang++") is None:
            return "no C++ compiler: install g++"
        return None

    @classmethod
    def load(cls, parts: Parts) -> CompiledRuntime:
        return cls(parts.program.module(parts.weights, parts.device), parts)

    def run(self, rows: Batch) -> dict[str, Tensor]:
        given = inputs_of(self._inputs, rows, self._device)
        if not len(given[0]):
            return without_rows(self._outputs, self._device)
        with torch.inference_mode():
            made = self._replayed(given) if self._device.type == "cuda" else self._call(*given)
        return {port.name: output for port, output in zip(self._outputs, made, strict=True)}

    def _replayed(self, given: list[Tensor]) -> Outputs:
        rows = len(given[0])
        if rows > LARGEST:
            pieces = [self._replayed([one[start : start + LARGEST] for one in given]) for start in range(0, rows, LARGEST)]
            return tuple(torch.cat(column) for column in zip(*pieces, strict=True))
        size = 1 << (rows - 1).bit_length()
        key = tuple((size, *one.shape[1:]) for one in given)
        if key not in self._graphs:
            self._graphs[key] = _Graph(self._call, given, size, self._device)
        return self._graphs[key].replay(given)


class _Graph:
    """The call captured once for a batch of `size` rows."""

    def __init__(self, call: Callable[..., Outputs], given: list[Tensor], size: int, device: torch.device) -> None:
        self._inputs = [one[:1].to(device).expand(size, *one.shape[1:]).contiguous() for one in given]
        side = torch.cuda.Stream(device)
        side.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(side):
            for _ in range(3):
                call(*self._inputs)
        torch.cuda.current_stream(device).wait_stream(side)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            self._outputs = call(*self._inputs)

    def replay(self, given: list[Tensor]) -> Outputs:
        rows = len(given[0])
        for buffer, one in zip(self._inputs, given, strict=True):
            buffer[:rows].copy_(one, non_blocking=True)
        self._graph.replay()
        return tuple(output[:rows].clone() for output in self._outputs)


def _compiled(module: nn.Module, parts: Parts) -> Callable[..., Outputs]:
    # freezing makes weights constants: batch norm is folded into convolutions, and each weight is cast only once
    options: dict[str, Any] = {"freezing": True, "emulate_precision_casts": False}
    dynamic = parts.device.type != "cuda"  # a CUDA graph has one shape anyway
    compiled = torch.compile(module, dynamic=dynamic, options=options)

    def call(*given: Tensor) -> Outputs:
        with autocast(parts.precision, parts.device):
            made: Outputs = compiled(*given)
        return made

    return call
