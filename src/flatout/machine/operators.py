"""Times single operators on this machine: calls them as the model does, on random values of the same layout.

Invalid integers (an index out of range, a random seed in device memory) can crash the device or the process. So integers are
passed only to operators known to accept any integer or to index with them, and every index is in range. Attention's backward
gets its seeds from its own forward.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from statistics import median
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map_only

from flatout.machine.ceilings import Ceilings
from flatout.machine.host import free_host_bytes
from flatout.machine.onednn import onednn_kept
from flatout.machine.rates import MATMUL_DTYPES, tf32_products
from flatout.machine.turns import BEARABLE_S, time_in_turns
from flatout.measure.clock import synchronize
from flatout.measure.counts import Call, Operation, TensorLayout

_FORMATS = {dtype: name for name, dtype in MATMUL_DTYPES.items() if dtype != torch.float32}
# accept any integers and booleans, as elementwise operators do; some are a library's internal byte buffers
_TAKES_ANY = {
    "_to_copy", "all", "any", "cat", "clone", "copy_", "cudnn_batch_norm_backward", "fill_", "stack", "sum", "tril", "triu",
    "zero_",
}  # fmt: skip
_PICKS = {
    "embedding", "embedding_dense_backward", "gather", "index_select", "max_pool2d_with_indices_backward",
    "nll_loss2d_backward", "nll_loss2d_forward", "nll_loss_backward", "nll_loss_forward", "scatter", "scatter_add",
}  # fmt: skip
_LOOKS_AT_NUMBERS = {torch.Tag.dynamic_output_shape, torch.Tag.data_dependent_output}
_BEARABLE_PART = 0.25  # share of the free memory


class _Short(Exception):
    """Too little memory now; it may be timed another time."""


def with_operators(ceilings: Ceilings, device: torch.device, operations: Iterable[Operation], limit_s: float) -> Ceilings:
    """Time unknown operators in order until the time is over. Returns the same object if there are none."""
    began_s = time.monotonic()
    missing = {one.key: one for one in operations if one.call is not None and one.key not in ceilings.operators}
    if not missing:
        return ceilings
    found: dict[str, float | None] = {}
    numbers = torch.Generator(device).manual_seed(0)
    random = torch.random.fork_rng([device] if device.type == "cuda" else [])
    with torch.no_grad(), random, tf32_products(False, device), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the model gives its own warnings when it runs
        for key, one in missing.items():
            if time.monotonic() - began_s > limit_s:
                break
            with suppress(_Short):
                found[key] = _timed(one, ceilings, device, numbers)
            synchronize(device)  # raises here if the operator broke the device: later times would be wrong
    if device.type == "cuda":
        torch.cuda.empty_cache()
    return replace(ceilings, operators={**ceilings.operators, **found}) if found else ceilings


def _timed(one: Operation, ceilings: Ceilings, device: torch.device, numbers: torch.Generator) -> float | None:
    call = one.call
    backward = call is not None and _is_attention_backward(call)
    if call is None or not (backward or _is_safe(call)) or _at_best_s(one, ceilings) > BEARABLE_S:
        return None  # large enough to predict from the ceilings
    if not has_room(_needed_bytes(one, call), device):
        raise _Short
    try:
        return (_attention_backward_seconds if backward else _seconds)(call, device, numbers)
    except torch.OutOfMemoryError as error:
        raise _Short from error
    except Exception:  # libraries raise many kinds of errors for unsupported work
        return None


def _needed_bytes(one: Operation, call: Call) -> int:
    """Memory of all arguments, which may be more than it reads, plus the bytes it reads and writes."""
    layouts = [leaf for leaf in tree_leaves((call.given, call.named)) if isinstance(leaf, TensorLayout)]
    return one.bytes + sum(layout.extent_bytes for layout in layouts)


def _at_best_s(one: Operation, ceilings: Ceilings) -> float:
    rate = ceilings.matmul_flops.get(_FORMATS.get(one.dtype, "fp32")) or ceilings.matmul_flops.get("fp32")
    copy = ceilings.copy_bytes_per_s
    return max(one.flops / rate.value if rate else 0.0, one.bytes / copy.value if copy else 0.0)


def has_room(needed_bytes: float, device: torch.device) -> bool:
    """Whether a measurement may use that much memory in addition to what the process uses now."""
    return needed_bytes <= _BEARABLE_PART * _free_bytes(device)


def _free_bytes(device: torch.device) -> int:
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else free_host_bytes()


def _is_safe(call: Call) -> bool:
    if call.func.namespace not in ("aten", "flatout") or _LOOKS_AT_NUMBERS & {*call.func.tags}:
        return False
    name = str(call.func.overloadpacket).removeprefix("aten.")
    if "linalg" in name and "norm" not in name:  # solvers wait for the device, which is not allowed in a CUDA graph
        return False
    known = call.func.namespace == "flatout" or name in _TAKES_ANY | _PICKS
    return bool(known or torch.Tag.pointwise in call.func.tags or not _has_integers(call))


def _is_attention_backward(call: Call) -> bool:
    name = str(call.func.name())
    return name.startswith("aten::_scaled_dot_product") and name.endswith("_backward")


def _has_integers(call: Call) -> bool:
    layouts = [one for one in tree_leaves((call.given, call.named)) if isinstance(one, TensorLayout)]
    return any(_is_integer(one.dtype) for one in layouts)


def _seconds(call: Call, device: torch.device, numbers: torch.Generator) -> float:
    layouts = (leaf for leaf in tree_leaves((call.given, call.named)) if isinstance(leaf, TensorLayout))
    with onednn_kept(*{layout.dtype for layout in layouts}):
        return _usual_s(called_again(call, device, numbers), device)


def called_again(call: Call, device: torch.device, numbers: torch.Generator) -> Callable[[], object]:
    """The same operator on random values of the same layout."""
    given, named = arguments_of(call, device, numbers)
    return lambda: call.func(*given, **named)


def arguments_of(call: Call, device: torch.device, numbers: torch.Generator) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Random values for each layout."""
    below = _no_index_reaches(call)
    given, named = tree_map_only(TensorLayout, lambda layout: _filled(layout, device, below, numbers), (call.given, call.named))
    return given, {name: device if name == "device" else value for name, value in named.items()}


def _attention_backward_seconds(call: Call, device: torch.device, numbers: torch.Generator) -> float:
    """Time of forward and backward, minus the forward."""
    asked = dict(zip((argument.name for argument in call.func._schema.arguments), call.given, strict=False)) | dict(call.named)
    query, key, value = (_filled(asked[name], device, 1, numbers).requires_grad_() for name in ("query", "key", "value"))
    bias = asked.get("attn_bias") or asked.get("attn_mask")
    mask = None if bias is None else _filled(bias, device, 1, numbers)
    shared = query.dim() == 4 and query.shape[1] != key.shape[1]  # grouped-query attention

    def forward() -> Tensor:
        dropout, causal = asked.get("dropout_p", 0.0), asked.get("is_causal", False)
        return F.scaled_dot_product_attention(query, key, value, mask, dropout, causal, enable_gqa=shared)

    with torch.enable_grad():
        gradient = torch.ones_like(forward())
        both_s = _usual_s(lambda: torch.autograd.grad(forward(), (query, key, value), gradient), device)
        return max(0.0, both_s - _usual_s(forward, device))


def _usual_s(once: Callable[[], object], device: torch.device) -> float:
    return median(time_in_turns((once,), device)[0])


def _no_index_reaches(call: Call) -> int:
    """The smallest of all dimensions and numbers in the call: any index below it is in range."""
    leaves = tree_leaves((call.given, call.named))
    sizes = [size for one in leaves if isinstance(one, TensorLayout) for size in one.shape]
    counts = [one for one in leaves if type(one) is int and one > 0]
    return max(1, min((*sizes, *counts), default=1))


def _filled(layout: TensorLayout, device: torch.device, below: int, numbers: torch.Generator) -> Tensor:
    # a repeated dimension is one value used many times
    shape = [1 if stride == 0 else size for size, stride in zip(layout.shape, layout.strides, strict=True)]
    strides = [1 if stride == 0 else stride for stride in layout.strides]
    tensor = torch.empty_strided(shape, strides, dtype=layout.dtype, device=device)
    if _is_integer(layout.dtype):
        tensor.random_(0, 2 if layout.dtype == torch.bool else below, generator=numbers)
    elif layout.dtype.itemsize == 1:  # torch can't draw random values in 1-byte formats
        tensor.copy_(torch.rand(shape, device=device, generator=numbers))
    else:  # positive, because it may be a variance
        (tensor.real if layout.dtype.is_complex else tensor).uniform_(generator=numbers)
    return tensor.expand(layout.shape)


def _is_integer(dtype: torch.dtype) -> bool:
    return not (dtype.is_floating_point or dtype.is_complex)
