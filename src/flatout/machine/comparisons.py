"""What is timed to measure an optimisation's gain: some operators of a step, or its update, without and with it.

The operators come from a trace or a profile of the model: only the few with the most work.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from math import ceil

import torch
from torch import nn
from torch.utils._pytree import tree_leaves, tree_map_only

from flatout.machine.convolutions import own_convolutions
from flatout.machine.gains import GainComparison, Pair, Way, gain_key
from flatout.machine.onednn import onednn_kept
from flatout.machine.operators import arguments_of, called_again
from flatout.machine.optimisations import AUTOCAST, CHANNELS_LAST, FUSED_OPTIMIZER, OWN_CONVOLUTIONS
from flatout.measure.counts import Call, Operation, TensorLayout

_MOST_OPERATORS = 8
_BEARABLE_FLOPS = 1e8  # of one convolution on a CPU: above this, fewer images show the same gain
_MOST_WEIGHTS = {"cpu": 2**22}  # elements in a timed update
_MOST_WEIGHTS_ELSEWHERE = 2**26
_COPIES = 8.0  # of the weights: gradients and optimizer state, each with and without a fused kernel

MakeUpdate = Callable[[list[nn.Parameter], bool], Way]  # (weights, fused or not) -> the update to time


def channels_last_key(device: torch.device, convolutions: Iterable[Operation]) -> str:
    """Needs only the operators' keys: stored traces have no calls."""
    return gain_key(CHANNELS_LAST, device, *(one.key for one in convolutions))


def channels_last(device: torch.device, convolutions: Sequence[Operation]) -> GainComparison | None:
    """None if there are no convolutions over images."""

    def ready(call: Call, device: torch.device, numbers: torch.Generator) -> tuple[Way, Way]:
        return called_again(call, device, numbers), called_again(in_channels_last(call), device, numbers)

    images = [one for one in convolutions if one.call is not None and any(map(_is_image, _layouts(one.call)))]
    return _compared(channels_last_key(device, convolutions), images, device, ready)


def torchs_own(
    device: torch.device, convolutions: Sequence[Operation], in_layout: Callable[[Call], Call]
) -> GainComparison | None:
    """`in_layout`: converts a call to the memory format that the model uses."""
    turned = [replace(one, call=in_layout(one.call)) for one in convolutions if one.call is not None]

    def ready(call: Call, device: torch.device, numbers: torch.Generator) -> tuple[Way, Way]:
        once = called_again(call, device, numbers)

        def own() -> None:
            with own_convolutions():
                once()

        return once, own

    keys = [one.call.key for one in turned if one.call is not None]
    return _compared(gain_key(OWN_CONVOLUTIONS, device, *keys), turned, device, ready)


def in_bfloat16(device: torch.device, products: Sequence[Operation], plain: str) -> GainComparison | None:
    """`plain`: how float32 products are computed without autocast. The smallest factor is cast on each call, as weights are."""

    def ready(call: Call, device: torch.device, numbers: torch.Generator) -> tuple[Way, Way]:
        return called_again(call, device, numbers), _cast_and_called(call, device, numbers)

    single = [one for one in products if one.dtype == torch.float32 and one.call is not None]
    key = gain_key(AUTOCAST, device, f"from {plain}", *(one.key for one in single))
    return _compared(key, single, device, ready)


def fused_key(device: torch.device, kind: str, sizes: Sequence[int]) -> str:
    return gain_key(FUSED_OPTIMIZER, device, kind, f"{len(sizes)} tensors: {sorted(sizes)}")


def fused_update(
    device: torch.device, kind: str, sizes: Sequence[int], dtype: torch.dtype, make: MakeUpdate
) -> GainComparison | None:
    """`kind`: the optimizer with its options, as text. `sizes`: elements of each tensor."""
    if not sizes:
        return None
    few = _fewer(sorted(sizes), _MOST_WEIGHTS.get(device.type, _MOST_WEIGHTS_ELSEWHERE))

    def ready(device: torch.device, numbers: torch.Generator) -> tuple[Way, Way]:
        plain, fused = (make(_weights(few, dtype, device, numbers), is_fused) for is_fused in (False, True))
        plain(), fused()  # the first update creates the optimizer state
        return plain, fused

    pair = Pair(_COPIES * sum(few) * dtype.itemsize, 1.0, ready)
    return GainComparison(fused_key(device, kind, sizes), (pair,), with_host=True)


def in_channels_last(call: Call) -> Call:
    given, named = tree_map_only(TensorLayout, _turned, (call.given, dict(call.named)))
    return Call(call.func, given, named)


def _compared(
    key: str,
    operations: Iterable[Operation],
    device: torch.device,
    ready: Callable[[Call, torch.device, torch.Generator], tuple[Way, Way]],
) -> GainComparison | None:
    found = list(operations)
    times = Counter(one.key for one in found)
    distinct = {one.key: one for one in found}.values()
    heaviest = sorted(distinct, key=lambda one: -one.flops * times[one.key])[:_MOST_OPERATORS]
    pairs = [_pair(one, times[one.key], device, ready) for one in heaviest if one.call is not None]
    return GainComparison(key, pairs) if pairs else None


def _pair(
    one: Operation,
    times: int,
    device: torch.device,
    ready: Callable[[Call, torch.device, torch.Generator], tuple[Way, Way]],
) -> Pair:
    assert one.call is not None
    parts = max(1, ceil(one.flops / _BEARABLE_FLOPS)) if device.type == "cpu" else 1
    call, done = _of_fewer_images(one.call, parts)
    return Pair(4.0 * sum(layout.extent_bytes for layout in _layouts(call)), times / done, partial(ready, call))


def _of_fewer_images(call: Call, parts: int) -> tuple[Call, float]:
    """The call on 1/`parts` of the images, and that share. Other calls are returned unchanged."""
    images = {"aten::convolution": (0,), "aten::convolution_backward": (0, 1)}.get(call.func.name(), ())
    if parts == 1 or not images:
        return call, 1.0
    whole = call.given[images[0]].shape[0]
    few = max(1, whole // parts)
    given = tuple(replace(one, shape=(few, *one.shape[1:])) if place in images else one for place, one in enumerate(call.given))
    return Call(call.func, given, call.named), few / whole


def _cast_and_called(call: Call, device: torch.device, numbers: torch.Generator) -> Way:
    """The call in bfloat16, with its smallest factor given in float32."""
    factors = {place: one for place, one in enumerate(call.given) if isinstance(one, TensorLayout) and len(one.shape) > 1}
    smallest = min(factors, key=lambda place: factors[place].extent_bytes)
    narrow = Call(call.func, *tree_map_only(TensorLayout, _narrowed, (call.given, dict(call.named))))
    given, named = arguments_of(narrow, device, numbers)
    wide = given[smallest].float()

    def called() -> object:
        with onednn_kept(torch.bfloat16):  # the float32 call that takes turns with this one needs it
            return call.func(*given[:smallest], wide.to(torch.bfloat16), *given[smallest + 1 :], **named)

    return called


def _narrowed(layout: TensorLayout) -> TensorLayout:
    return replace(layout, dtype=torch.bfloat16) if layout.dtype == torch.float32 else layout


def _turned(layout: TensorLayout) -> TensorLayout:
    if not _is_image(layout):
        return layout
    _, channels, height, width = layout.shape
    return replace(layout, strides=(channels * height * width, 1, channels * width, channels))


def _is_image(layout: TensorLayout) -> bool:
    return len(layout.shape) == 4


def _layouts(call: Call) -> list[TensorLayout]:
    return [leaf for leaf in tree_leaves((call.given, dict(call.named))) if isinstance(leaf, TensorLayout)]


def _fewer(sizes: Sequence[int], most: int) -> Sequence[int]:
    """Every second size, repeatedly, until the total is at most `most` elements."""
    while sum(sizes) > most and len(sizes) > 1:
        sizes = sizes[::2]
    return [min(size, most) for size in sizes]


def _weights(sizes: Sequence[int], dtype: torch.dtype, device: torch.device, numbers: torch.Generator) -> list[nn.Parameter]:
    weights = [nn.Parameter(torch.randn(size, device=device, generator=numbers).to(dtype)) for size in sizes]
    for one in weights:
        one.grad = torch.full_like(one, 1e-3)
    return weights
