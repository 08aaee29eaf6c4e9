"""The program compiled by torch.compile. On a GPU each batch size is one CUDA graph; a batch is padded to the next size."""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from flatout.data.source import Batch
from flatout.packaging.onnx_program import ONLY_ONNX, OnnxProgram
from flatout.packaging.program import dtype_named
from flatout.packaging.runtimes.runtime import Parts, Runtime, arithmetic, columns_of, inputs_of, without_rows

GRAPH_SIZES = (
    1,
    4,
    16,
    64,
    256,
)  # rows of the CUDA graphs; each is compiled by itself, which takes 10 s and more for a large model
LARGEST = GRAPH_SIZES[-1]  # a larger batch is run in several

Outputs = tuple[Tensor, ...]


class CompiledRuntime(Runtime):
    name: ClassVar[str] = "compiled"
    needs_compiler: ClassVar[bool] = True

    def __init__(self, module: nn.Module, parts: Parts) -> None:
        self._device = parts.device
        self._inputs, self._outputs = parts.program.inputs, parts.program.outputs
        self._call = _compiled(module, parts)
        self._graphs: dict[tuple[tuple[int, ...], ...], _Graph] = {}
        self.sizes = GRAPH_SIZES if parts.device.type == "cuda" else None

    @classmethod
    def why_not(cls, parts: Parts) -> str | None:
        if isinstance(parts.program, OnnxProgram):
            return ONLY_ONNX
        if parts.device.type == "cpu" and shutil.which("g++") is None and shutil.which("clang++") is None:
            return "no C++ compiler: install g++"
        return None

    @classmethod
    def load(cls, parts: Parts) -> CompiledRuntime:
        return cls(parts.program.module(parts.weights, parts.device), parts)

    def run(self, rows: Batch) -> dict[str, Tensor]:
        given = columns_of(self._inputs, rows)
        if not len(given[0]):
            return without_rows(self._outputs, self._device)
        with torch.inference_mode():
            if self._device.type == "cuda":
                made = self._replayed(given)
            else:
                made = self._call(*inputs_of(self._inputs, rows, self._device))
        return {port.name: output for port, output in zip(self._outputs, made, strict=True)}

    def _replayed(self, given: list[Tensor]) -> Outputs:
        rows = len(given[0])
        if rows > LARGEST:
            pieces = [self._replayed([one[start : start + LARGEST] for one in given]) for start in range(0, rows, LARGEST)]
            return tuple(torch.cat(column) for column in zip(*pieces, strict=True))
        size = next(one for one in GRAPH_SIZES if one >= rows)
        key = tuple((size, *one.shape[1:]) for one in given)
        if key not in self._graphs:
            typed = [one[:1].to(self._device, dtype_named(port.dtype)) for port, one in zip(self._inputs, given, strict=True)]
            self._graphs[key] = _Graph(self._call, typed, size, self._device)
        return self._graphs[key].replay(given)


class _Graph:
    """The call captured once for a batch of `size` rows; `first` has one row."""

    def __init__(self, call: Callable[..., Outputs], first: list[Tensor], size: int, device: torch.device) -> None:
        self._inputs = [one.expand(size, *one.shape[1:]).contiguous() for one in first]
        self._staged: list[Tensor | None] = [None] * len(first)
        self._sent = torch.cuda.Event()
        side = torch.cuda.Stream(device)
        side.wait_stream(torch.cuda.current_stream(device))
        limits = torch._dynamo.config.patch(recompile_limit=8 * len(GRAPH_SIZES))  # more batch sizes than its default
        with torch.cuda.stream(side), warnings.catch_warnings(), limits:
            warnings.simplefilter("ignore")  # advice to give up precision
            for _ in range(3):
                call(*self._inputs)
        torch.cuda.current_stream(device).wait_stream(side)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            self._outputs = call(*self._inputs)

    def replay(self, given: list[Tensor]) -> Outputs:
        rows = len(given[0])
        for place, one in enumerate(given):
            pinned = one if one.is_cuda or one.is_pinned() else self._pinned(place, one)
            self._inputs[place][:rows].copy_(pinned, non_blocking=True)
        self._sent.record()
        self._graph.replay()
        return tuple(output[:rows].clone() for output in self._outputs)

    def _pinned(self, place: int, one: Tensor) -> Tensor:
        """Copied by all cores into pinned memory: the driver copies pageable memory with one core, and slowly."""
        staged = self._staged[place]
        if staged is None or staged.dtype != one.dtype:
            staged = self._staged[place] = torch.empty(self._inputs[place].shape, dtype=one.dtype, pin_memory=True)
        self._sent.synchronize()  # the batch before may still be read from it
        return staged[: len(one)].copy_(one)


def _compiled(module: nn.Module, parts: Parts) -> Callable[..., Outputs]:
    # freezing makes weights constants: batch norm is folded into convolutions, and each weight is cast only once
    options: dict[str, Any] = {"freezing": True, "emulate_precision_casts": False}
    dynamic = parts.device.type != "cuda"  # a CUDA graph has one shape anyway
    compiled = torch.compile(module, dynamic=dynamic, options=options)

    def call(*given: Tensor) -> Outputs:
        with arithmetic(parts.precision, parts.device):
            made: Outputs = compiled(*given)
        return made

    return call
