"""Products of a stack in bf16, from weights that were cast together.

Autocast casts each weight on its own, and below vmap it sees a product and the addition of its bias apart: that sum, and all
that follows it, would be in float32. On an H200 256 MLPs 64-256-256-10 took 1.27 ms for such a step, and 0.81 ms in bf16.
"""

from __future__ import annotations

from typing import Any

from torch import nn

_PRODUCTS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)  # no subclasses, which may do anything with their weights


def compute_in_dtype_of_weights(model: nn.Module) -> frozenset[str]:
    """Names of the parameters that nothing but products use. These modules cast what they get to the dtype of their weight."""
    products, others = set[int](), set[int]()
    for module in model.modules():
        is_product = type(module) in _PRODUCTS
        (products if is_product else others).update(map(id, module.parameters(recurse=False)))
    for module in model.modules():
        if type(module) in _PRODUCTS:
            module.register_forward_pre_hook(_cast)
    return frozenset(name for name, one in model.named_parameters() if id(one) in products - others)


def _cast(module: nn.Module, given: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(one.to(module.weight.dtype) for one in given)
