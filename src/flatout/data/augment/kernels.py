"""The crop as one Triton kernel: each program makes a range of pixels of one image, read directly from the flat store.

Import this only if Triton is installed.
"""

import threading

import torch
import triton  # type: ignore[import-not-found,import-untyped,unused-ignore]
import triton.language as tl  # type: ignore[import-not-found,import-untyped,unused-ignore]
from torch import Tensor

from flatout.data.augment.windows import CropWindow, Flat

_BLOCK = 256
_one_at_a_time = threading.Lock()  # otherwise several threads would compile the kernel at the same time


def resample_by_triton(images: Flat, window: CropWindow, size: int, *, cubic: bool = False) -> Tensor:
    """uint8 [B, 3, size, size], channels last in memory. Nothing waits for the device, and no shape depends on a value."""
    count = len(images.start)
    out = torch.empty((count, size, size, 3), dtype=torch.uint8, device=images.pixels.device)
    inputs = [images.pixels, *(column.contiguous() for column in (images.start, images.width, *window))]
    with torch.cuda.device(images.pixels.device), _one_at_a_time:
        _resample[(count, triton.cdiv(size * size, _BLOCK))](*inputs, out, SIZE=size, BLOCK=_BLOCK, CUBIC=cubic)
    return out.permute(0, 3, 1, 2)


@triton.jit  # type: ignore[misc,untyped-decorator,unused-ignore]
def _weight(away, CUBIC: tl.constexpr):  # type: ignore[no-untyped-def,unused-ignore]
    if CUBIC:
        near = (1.5 * away - 2.5) * away * away + 1.0
        far = ((-0.5 * away + 2.5) * away - 4.0) * away + 2.0
        return tl.where(away < 1.0, near, tl.where(away < 2.0, far, 0.0))
    else:
        return tl.maximum(1.0 - away, 0.0)


@triton.jit  # type: ignore[misc,untyped-decorator,unused-ignore]
def _byte(value):  # type: ignore[no-untyped-def,unused-ignore]
    return tl.floor(tl.maximum(tl.minimum(value, 255.0), 0.0) + 0.5)


@triton.jit  # type: ignore[misc,untyped-decorator,unused-ignore]
def _resample(  # type: ignore[no-untyped-def,unused-ignore]
    pixels, start, stride, top, left, height, width, tall, wide, down, across, out,
    SIZE: tl.constexpr, BLOCK: tl.constexpr, CUBIC: tl.constexpr,
):  # fmt: skip
    image = tl.program_id(0)
    place = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = place < SIZE * SIZE

    row_bytes = tl.load(stride + image) * 3
    corner = pixels + tl.load(start + image) + tl.load(top + image) * row_bytes + tl.load(left + image) * 3
    high = tl.load(height + image).to(tl.int32)
    broad = tl.load(width + image).to(tl.int32)

    step_y = high.to(tl.float32) / tl.load(tall + image).to(tl.float32)
    step_x = broad.to(tl.float32) / tl.load(wide + image).to(tl.float32)
    unit_y = tl.maximum(step_y, 1.0)
    unit_x = tl.maximum(step_x, 1.0)
    reach_y = unit_y * 2 if CUBIC else unit_y
    reach_x = unit_x * 2 if CUBIC else unit_x
    centre_y = ((place // SIZE).to(tl.float32) + tl.load(down + image).to(tl.float32) + 0.5) * step_y
    centre_x = ((place % SIZE).to(tl.float32) + tl.load(across + image).to(tl.float32) + 0.5) * step_x
    first_y = tl.maximum((centre_y - reach_y + 0.5).to(tl.int32), 0)
    first_x = tl.maximum((centre_x - reach_x + 0.5).to(tl.int32), 0)
    last_y = tl.minimum((centre_y + reach_y + 0.5).to(tl.int32), high)
    last_x = tl.minimum((centre_x + reach_x + 0.5).to(tl.int32), broad)
    taps_y = (2 * reach_y).to(tl.int32) + 2
    taps_x = (2 * reach_x).to(tl.int32) + 2

    red = tl.zeros([BLOCK], dtype=tl.float32)
    green = tl.zeros([BLOCK], dtype=tl.float32)
    blue = tl.zeros([BLOCK], dtype=tl.float32)
    sum_y = tl.zeros([BLOCK], dtype=tl.float32)
    for dy in range(0, taps_y):
        y = first_y + dy
        counts_y = inside & (y < last_y)
        weight_y = _weight(tl.abs((y.to(tl.float32) + 0.5 - centre_y) / unit_y), CUBIC)
        weight_y = tl.where(counts_y, weight_y, 0.0)
        line_red = tl.zeros([BLOCK], dtype=tl.float32)
        line_green = tl.zeros([BLOCK], dtype=tl.float32)
        line_blue = tl.zeros([BLOCK], dtype=tl.float32)
        sum_x = tl.zeros([BLOCK], dtype=tl.float32)
        for dx in range(0, taps_x):
            x = first_x + dx
            counts = counts_y & (x < last_x)
            weight_x = _weight(tl.abs((x.to(tl.float32) + 0.5 - centre_x) / unit_x), CUBIC)
            weight_x = tl.where(counts, weight_x, 0.0)
            pixel = corner + y.to(tl.int64) * row_bytes + x.to(tl.int64) * 3
            line_red += weight_x * tl.load(pixel, mask=counts, other=0).to(tl.float32)
            line_green += weight_x * tl.load(pixel + 1, mask=counts, other=0).to(tl.float32)
            line_blue += weight_x * tl.load(pixel + 2, mask=counts, other=0).to(tl.float32)
            sum_x += weight_x
        scale = weight_y / tl.maximum(sum_x, 1e-6)
        if CUBIC:  # its weights are negative in places: rounded to bytes between the two directions, as on a CPU
            line_red = _byte(line_red / tl.maximum(sum_x, 1e-6))
            line_green = _byte(line_green / tl.maximum(sum_x, 1e-6))
            line_blue = _byte(line_blue / tl.maximum(sum_x, 1e-6))
            scale = weight_y
        red += line_red * scale
        green += line_green * scale
        blue += line_blue * scale
        sum_y += weight_y

    share = 1.0 / tl.maximum(sum_y, 1e-6)
    target = out + (image.to(tl.int64) * SIZE * SIZE + place) * 3
    tl.store(target, _byte(red * share).to(tl.int32).to(tl.uint8), mask=inside)
    tl.store(target + 1, _byte(green * share).to(tl.int32).to(tl.uint8), mask=inside)
    tl.store(target + 2, _byte(blue * share).to(tl.int32).to(tl.uint8), mask=inside)
