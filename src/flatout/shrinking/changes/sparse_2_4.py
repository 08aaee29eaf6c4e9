"""2:4 sparsity on a GPU: of four weights in a row the two largest stay, in a form from which its sparse products read.

The products are in bfloat16, by cuSPARSELt. What half of the weights did is gone, and nothing is trained after it: whether that
is accurate enough is up to the gate, and layers go back one by one as with any other change.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor

from flatout.packaging.program import Node, Program
from flatout.shrinking.changes.program_change import ProgramChange, ProgramWriter

_WIDE, _STEP = 64, 32  # of the kernel's sizes
_ROWS = 8  # of the input: the kernel takes multiples
_CAPABILITY = (8, 0)


class Sparse24(ProgramChange):
    name: ClassVar[str] = "sparse_2_4"

    def why_not(self, program: Program, weights: Mapping[str, Tensor], device: torch.device) -> str | None:
        if device.type != "cuda":
            return "there are no kernels for 2:4 sparsity on a CPU"
        if torch.cuda.get_device_capability(device) < _CAPABILITY:
            return (
                f"{torch.cuda.get_device_name(device)} has no sparse products: they take compute capability 8.0, as of an A100"
            )
        if not torch.backends.cusparselt.is_available():
            return f"torch {torch.__version__} is built without cuSPARSELt"
        if not self.layers(program, weights):
            return f"no linear layer is {_WIDE} wide or more, in multiples of {_STEP}, in both directions"
        return None

    def fits(self, weight: Tensor) -> bool:
        return weight.dim() == 2 and min(weight.shape) >= _WIDE and all(size % _STEP == 0 for size in weight.shape)

    def write(self, writer: ProgramWriter, node: Node, name: str, bias: str | None, rank: int) -> None:
        outputs, inputs = writer.weights[name].shape
        writer.weights[f"{name}/sparse"] = compressed(two_of_four(writer.weights[name]).to(torch.bfloat16))
        call, x = writer.call, writer.moved(node.args[0])
        rows = call("aten.to.dtype", writer.rows_of(x, rank, inputs), {"dtype": "bfloat16"})
        count = call("aten.sym_size.int", rows, 0)
        missing = call("operator.mod", call("operator.neg", count), _ROWS)
        padded = call("aten.constant_pad_nd.default", rows, [0, 0, 0, missing])
        added = None
        if bias is not None:
            writer.weights[f"{name}/bias"] = writer.weights[bias].to(torch.bfloat16)
            added = writer.tensor(f"{name}/bias")
        turned, weight = call("aten.t.default", padded), writer.tensor(f"{name}/sparse")
        made = call("aten._cslt_sparse_mm.default", weight, turned, added, None, None, True)
        writer.like(x, rank, call("aten.slice.Tensor", made, 0, 0, count), outputs)


def two_of_four(weight: Tensor) -> Tensor:
    """The two largest of each four numbers in a row; the others are 0."""
    fours = weight.float().unflatten(1, (-1, 4))
    places = fours.abs().topk(2, dim=-1).indices
    return torch.zeros_like(fours).scatter(-1, places, fours.gather(-1, places)).flatten(1)


def compressed(weight: Tensor) -> Tensor:
    """The numbers that stay and their places, as the kernels of this GPU read them."""
    return torch._cslt_compress(weight.to("cuda").contiguous()).cpu()
