"""Linear layers in fp8 on a GPU: weights with a scale for each output, inputs with one for each row, measured in each call.

The program of a package is rewritten: each product becomes torch's scaled product of two e4m3 matrices, with sums in higher
precision. Eight bits are stored as bytes, since files of weights have no fp8.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor

from flatout.packaging.program import Node, Program
from flatout.shrinking.changes.program_change import ProgramChange, ProgramWriter

_LARGEST = torch.finfo(torch.float8_e4m3fn).max
_STEP, _WIDE = 16, 64  # of the kernel's sizes; smaller layers lose more to rounding than the product saves
_LEAST = 1e-12
_CAPABILITY = (8, 9)


class Fp8(ProgramChange):
    name: ClassVar[str] = "fp8"

    def why_not(self, program: Program, weights: Mapping[str, Tensor], device: torch.device) -> str | None:
        if device.type == "cuda" and torch.cuda.get_device_capability(device) < _CAPABILITY:
            return f"{torch.cuda.get_device_name(device)} has no fp8: it takes compute capability 8.9, as of an L4 or an H100"
        if not self.layers(program, weights):
            return f"no linear layer is {_WIDE} wide or more, in multiples of {_STEP}, in both directions"
        return None

    def fits(self, weight: Tensor) -> bool:
        return weight.dim() == 2 and min(weight.shape) >= _WIDE and all(size % _STEP == 0 for size in weight.shape)

    def write(self, writer: ProgramWriter, node: Node, name: str, bias: str | None, rank: int) -> None:
        weight = writer.weights[name].float()
        outputs, inputs = weight.shape
        scale = weight.abs().amax(1, keepdim=True).clamp(min=_LEAST) / _LARGEST
        whole = (weight / scale).clamp(-_LARGEST, _LARGEST).to(torch.float8_e4m3fn).view(torch.uint8)
        writer.weights |= {f"{name}/fp8": whole, f"{name}/scale": scale.t().contiguous()}
        call, x = writer.call, writer.moved(node.args[0])
        wide = call("aten.to.dtype", writer.rows_of(x, rank, inputs), {"dtype": "float32"})
        largest = call("aten.amax.default", call("aten.abs.default", wide), [-1], True)
        step = call("aten.div.Tensor", call("aten.clamp.default", largest, _LEAST), _LARGEST)
        cut = call("aten.clamp.default", call("aten.div.Tensor", wide, step), -_LARGEST, _LARGEST)
        narrow = call("aten.to.dtype", cut, {"dtype": "float8_e4m3fn"})
        bits = call("aten.view.dtype", writer.tensor(f"{name}/fp8"), {"dtype": "float8_e4m3fn"})
        turned, scales = call("aten.t.default", bits), writer.tensor(f"{name}/scale")
        made = call("aten._scaled_mm.default", narrow, turned, step, scales, None, None, {"dtype": "bfloat16"}, True)
        if bias is not None:
            writer.weights[f"{name}/bias"] = writer.weights[bias].to(torch.bfloat16)
            made = call("aten.add.Tensor", made, writer.tensor(f"{name}/bias"))
        writer.like(x, rank, made, outputs)
