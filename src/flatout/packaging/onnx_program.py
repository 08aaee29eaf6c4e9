"""For a package whose model is its ONNX file alone, such as an int8 one: PyTorch has no graph of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from flatout.base.errors import ModelError
from flatout.packaging.ports import Port

FORMAT = 1
ONLY_ONNX = "the package holds its model as an ONNX file alone"


@dataclass(frozen=True)
class OnnxProgram:
    """Like `Program`, but only onnxruntime runs it."""

    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]

    @property
    def weight_names(self) -> tuple[str, ...]:
        return ()

    def module(self, weights: Mapping[str, Tensor], device: torch.device) -> nn.Module:
        raise ModelError(f"{ONLY_ONNX}, so PyTorch can't run it")

    def to_json(self) -> dict[str, Any]:
        inputs, outputs = ([port.to_json() for port in ports] for ports in (self.inputs, self.outputs))
        return {"format": FORMAT, "inputs": inputs, "outputs": outputs}

    @classmethod
    def from_json(cls, written: Mapping[str, Any]) -> OnnxProgram:
        inputs, outputs = (tuple(Port.from_json(port) for port in written[key]) for key in ("inputs", "outputs"))
        return cls(inputs, outputs)
