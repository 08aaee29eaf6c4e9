"""Linear layers in int8 on a GPU: weights with a scale for each output, inputs with one for each row, measured in each call.

Products are sums of whole numbers, so what is lost is the rounding of weights and inputs alone. It is for GPUs without fp8, and
for layers to which 127 even steps do more justice than the uneven ones of fp8.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor

from flatout.packaging.program import Node, Program
from flatout.shrinking.changes.program_change import ProgramChange, ProgramWriter

_LARGEST = 127
_STEP, _WIDE = 8, 64  # of the kernel's sizes; smaller layers lose more to rounding than the product saves
_ROWS = 16  # the kernel takes more rows than these
_LEAST = 1e-12
_CAPABILITY = (7, 5)


class Int8Products(ProgramChange):
    name: ClassVar[str] = "int8"

    def why_not(self, program: Program, weights: Mapping[str, Tensor], device: torch.device) -> str | None:
        if device.type == "cuda" and torch.cuda.get_device_capability(device) < _CAPABILITY:
            return f"{torch.cuda.get_device_name(device)} has no int8 products: they take compute capability 7.5, as of a T4"
        if not self.layers(program, weights):
            return f"no linear layer is {_WIDE} wide or more, in multiples of {_STEP}, in both directions"
        return None

    def fits(self, weight: Tensor) -> bool:
        return weight.dim() == 2 and min(weight.shape) >= _WIDE and all(size % _STEP == 0 for size in weight.shape)

    def write(self, writer: ProgramWriter, node: Node, name: str, bias: str | None, rank: int) -> None:
        weight = writer.weights[name].float()
        outputs, inputs = weight.shape
        scale = weight.abs().amax(1, keepdim=True).clamp(min=_LEAST) / _LARGEST
        whole = (weight / scale).round().clamp(-_LARGEST, _LARGEST).to(torch.int8)
        writer.weights |= {f"{name}/int8": whole, f"{name}/scale": scale.t().contiguous()}
        call, x = writer.call, writer.moved(node.args[0])
        wide = call("aten.to.dtype", writer.rows_of(x, rank, inputs), {"dtype": "float32"})
        largest = call("aten.amax.default", call("aten.abs.default", wide), [-1], True)
        step = call("aten.div.Tensor", call("aten.clamp.default", largest, _LEAST), _LARGEST)
        cut = call("aten.clamp.default", call("aten.round.default", call("aten.div.Tensor", wide, step)), -_LARGEST, _LARGEST)
        narrow = call("aten.to.dtype", cut, {"dtype": "int8"})
        count = call("aten.sym_size.int", narrow, 0)
        missing = call("operator.add", call("operator.mod", call("operator.neg", count), _ROWS), _ROWS)
        padded = call("aten.constant_pad_nd.default", narrow, [0, 0, 0, missing])
        turned = call("aten.t.default", writer.tensor(f"{name}/int8"))
        sums = call("aten.slice.Tensor", call("aten._int_mm.default", padded, turned), 0, 0, count)
        made = call("aten.mul.Tensor", call("aten.mul.Tensor", sums, step), writer.tensor(f"{name}/scale"))
        if bias is not None:
            writer.weights[f"{name}/bias"] = writer.weights[bias].float()
            made = call("aten.add.Tensor", made, writer.tensor(f"{name}/bias"))
        if writer.precision != "fp32":
            made = call("aten.to.dtype", made, {"dtype": "bfloat16"})
        writer.like(x, rank, made, outputs)
