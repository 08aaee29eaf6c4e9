"""The program as PyTorch runs it, operator by operator. Works everywhere: the baseline of the other runtimes."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn

from flatout.data.source import Batch
from flatout.packaging.onnx_program import ONLY_ONNX, OnnxProgram
from flatout.packaging.runtimes.runtime import Parts, Runtime, arithmetic, inputs_of


class EagerRuntime(Runtime):
    name: ClassVar[str] = "eager"

    def __init__(self, module: nn.Module, parts: Parts) -> None:
        self._module, self._device, self._precision = module, parts.device, parts.precision
        self._inputs = parts.program.inputs
        self._outputs = tuple(port.name for port in parts.program.outputs)

    @classmethod
    def why_not(cls, parts: Parts) -> str | None:
        return ONLY_ONNX if isinstance(parts.program, OnnxProgram) else None

    @classmethod
    def load(cls, parts: Parts) -> EagerRuntime:
        return cls(parts.program.module(parts.weights, parts.device), parts)

    def run(self, rows: Batch) -> dict[str, Tensor]:
        given = inputs_of(self._inputs, rows, self._device)
        with torch.inference_mode(), arithmetic(self._precision, self._device):
            return dict(zip(self._outputs, self._module(*given), strict=True))
