"""Scales a box of each image to a square of one size, with a triangle (bilinear) or cubic filter and antialiasing.

On a CPU, torch's kernel for bytes, image by image. On a GPU, one kernel for the batch that reads the stored images directly.
On other devices, the same sums in plain torch, which waits for the device once per batch. All agree within one level of 255.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache

import torch
from torch import Tensor
from torch.nn import functional

from flatout.data.augment.windows import CropWindow, Flat
from flatout.data.files.room import empty

INTERPOLATIONS = ("bilinear", "bicubic")
_FEW = 8  # with fewer images a second thread does not pay off


def resample(images: Flat, window: CropWindow, size: int, interpolation: str = "bilinear") -> Tensor:
    """uint8 [B, 3, size, size], channels last in memory."""
    device = images.pixels.device.type
    if device == "cpu":
        return resample_on_cpu(images, window, size, interpolation)
    if device == "cuda" and _has_triton():
        from flatout.data.augment.kernels import resample_by_triton

        return resample_by_triton(images, window, size, cubic=interpolation == "bicubic")
    return resample_plainly(images, window, size, interpolation)


def resample_on_cpu(images: Flat, window: CropWindow, size: int, interpolation: str = "bilinear") -> Tensor:
    count = len(images.start)
    out = empty((count, size, size, 3), torch.uint8).permute(0, 3, 1, 2)
    numbers = torch.stack([images.start, images.width, *window], 1).tolist()

    def cut(first: int, step: int) -> None:
        for place in range(first, count, step):
            start, stride, top, left, height, width, tall, wide, down, across = numbers[place]
            strides = (3 * stride * height, 1, 3 * stride, 3)  # the first is that of one image, or torch takes a slower way
            begin = images.pixels.storage_offset() + start + 3 * (top * stride + left)
            box = images.pixels.as_strided((1, 3, height, width), strides, begin)
            box = box.contiguous(memory_format=torch.channels_last)  # torch's fast kernel needs contiguous input
            scaled = functional.interpolate(box, size=(tall, wide), mode=interpolation, antialias=True)
            out[place].copy_(scaled[0, :, down : down + size, across : across + size])

    threads = torch.get_num_threads()
    if threads == 1 or count < _FEW:
        cut(0, 1)
    else:
        for done in [_pool(threads).submit(cut, first, threads) for first in range(threads)]:
            done.result()
    return out


def resample_plainly(images: Flat, window: CropWindow, size: int, interpolation: str = "bilinear") -> Tensor:
    """The sums that define the result. Runs on every device, slowly."""
    places = torch.arange(size, device=images.start.device)
    first_y, taps_y, weight_y = _taps(places + window.down[:, None], window.height, window.tall, interpolation)
    first_x, taps_x, weight_x = _taps(places + window.across[:, None], window.width, window.wide, interpolation)
    total = torch.zeros((len(images.start), size, size, 3), device=images.start.device)
    channels = torch.arange(3, device=images.start.device)
    for dy in range(taps_y):
        line = torch.zeros_like(total)
        y = (first_y + dy).clamp(max=window.height[:, None] - 1) + window.top[:, None]
        for dx in range(taps_x):
            x = (first_x + dx).clamp(max=window.width[:, None] - 1) + window.left[:, None]
            pixel = images.start[:, None, None] + 3 * (y[:, :, None] * images.width[:, None, None] + x[:, None, :])
            line += weight_x[dx][:, None, :, None] * images.pixels[pixel[..., None] + channels]
        if interpolation == "bicubic":  # its weights are negative in places: torch rounds to bytes between the two directions
            line = (line + 0.5).floor_().clamp_(0, 255)
        total += weight_y[dy][:, :, None, None] * line
    return (total + 0.5).floor_().clamp_(0, 255).to(torch.uint8).permute(0, 3, 1, 2)


def _taps(places: Tensor, length: Tensor, scaled: Tensor, interpolation: str) -> tuple[Tensor, int, Tensor]:
    """For places [B, size] of a scaled line: the first source pixel, the largest number of them, and their weights."""
    step = (length.float() / scaled)[:, None]
    unit = step.clamp(min=1)
    reach = unit if interpolation == "bilinear" else 2 * unit
    centre = (places + 0.5) * step
    first = (centre - reach + 0.5).long().clamp_(min=0)
    last = torch.minimum((centre + reach + 0.5).long(), length[:, None])
    taps = int((last - first).max())
    pixels = first + torch.arange(taps, device=places.device)[:, None, None]
    away = ((pixels + 0.5 - centre) / unit).abs()
    weight = (1 - away).clamp_(min=0) if interpolation == "bilinear" else _cubic(away)
    weight.masked_fill_(pixels >= last, 0)
    return first, taps, weight / weight.sum(0)


def _cubic(away: Tensor) -> Tensor:
    """Keys' filter with -0.5, as Pillow and torch's antialiased kernel have it."""
    near = (1.5 * away - 2.5) * away.square() + 1
    far = ((-0.5 * away + 2.5) * away - 4) * away + 2
    return torch.where(away < 1, near, torch.where(away < 2, far, torch.zeros_like(away)))


@lru_cache(maxsize=4)
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, thread_name_prefix="crop")


@lru_cache(maxsize=1)
def _has_triton() -> bool:
    try:
        import triton  # noqa: F401
    except ImportError:
        return False
    return True
