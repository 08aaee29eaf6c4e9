"""Decodes JPEGs on the GPU with nvJPEG, through torchvision. Its pixels differ from turbo's, so it is never the default."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from flatout.data.decoding.decode import RULE, Array, DecodePlan, decode_one, upright

_END = b"\xff\xd9"


class NvJpeg:
    """Decodes and resizes JPEGs on the device. Other files are decoded on the CPU."""

    at_once = 64

    @staticmethod
    def missing() -> str | None:
        """What it needs and this machine lacks. None: nothing."""
        if not torch.cuda.is_available():
            return "there is no CUDA device"
        try:
            from torchvision.io import decode_jpeg  # noqa: F401
        except (ImportError, RuntimeError) as error:
            return f"torchvision can't be imported ({error})"
        return None

    @property
    def id(self) -> str:
        import PIL
        import torchvision

        return f"nvjpeg rule {RULE}, torchvision {torchvision.__version__}, cuda {torch.version.cuda}, pillow {PIL.__version__}"

    def decode(self, contents: Sequence[bytes], plans: Sequence[DecodePlan], outs: Sequence[Array]) -> list[str | None]:
        problems: list[str | None] = [None] * len(contents)
        ours = [place for place, plan in enumerate(plans) if plan.turbo]
        for place in range(len(contents)):
            if place not in ours:
                problems[place] = decode_one(contents[place], plans[place], outs[place])
        try:
            images = _decode([contents[place] for place in ours])
        except RuntimeError:  # one bad file fails the whole call: find it
            images = []
            for place in ours:
                images += _decode_alone(contents[place], problems, place)
        for place, image in zip(ours, images, strict=True):
            if image is not None:
                problems[place] = _finish(image, contents[place], plans[place], outs[place])
        return problems


def _decode(contents: Sequence[bytes]) -> list[Any]:
    from torchvision.io import ImageReadMode, decode_jpeg

    if not contents:
        return []
    flat = [torch.frombuffer(bytearray(content), dtype=torch.uint8) for content in contents]
    return list(decode_jpeg(flat, mode=ImageReadMode.RGB, device="cuda"))


def _decode_alone(content: bytes, problems: list[str | None], place: int) -> list[Any]:
    try:
        return _decode([content])
    except RuntimeError as error:
        problems[place] = f"can't be decoded: {error}"
        return [None]


def _finish(image: Tensor, content: bytes, plan: DecodePlan, out: Array) -> str | None:
    if _END not in content[-4096:]:  # nvJPEG fills missing parts with grey and reports no error
        return "can't be decoded: Premature end of JPEG file"
    high, wide = -(-plan.stage_height // plan.factor), -(-plan.stage_width // plan.factor)
    if image.shape[-2:] != (high, wide):
        image = torch.nn.functional.interpolate(image[None].float(), size=(high, wide), mode="area")[0].round().to(torch.uint8)
    pixels = upright(image.permute(1, 2, 0).cpu().numpy(), plan.orientation)
    out.reshape(pixels.shape)[...] = pixels
    return None
