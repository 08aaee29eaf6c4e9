"""Decodes JPEGs on the GPU with nvJPEG, through torchvision. Its pixels differ from turbo's, so it is never the default."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from flatout.data.decoding.decode import RULE, Array, DecodePlan, decode_one

_END = b"\xff\xd9"
_END_WITHIN = 4096  # bytes: some cameras write more behind it


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
            images = self._decode([contents[place] for place in ours], [plans[place] for place in ours])
        except RuntimeError:  # one bad file fails the whole call: find it
            images = [self._decode_alone(contents[place], plans[place], problems, place) for place in ours]
        for place, image in zip(ours, images, strict=True):
            if image is None:
                continue
            if not has_end(contents[place]):
                problems[place] = "can't be decoded: Premature end of JPEG file"
                continue
            pixels = image.cpu().numpy()
            outs[place].reshape(pixels.shape)[...] = pixels
        return problems

    def _decode_alone(self, content: bytes, plan: DecodePlan, problems: list[str | None], place: int) -> Tensor | None:
        try:
            return self._decode([content], [plan])[0]
        except RuntimeError as error:
            problems[place] = f"can't be decoded: {error}"
            return None

    @staticmethod
    def _decode(contents: Sequence[bytes], plans: Sequence[DecodePlan]) -> Sequence[Tensor | None]:
        files = [torch.frombuffer(bytearray(content), dtype=torch.uint8) for content in contents]
        return decode_to_device(files, plans, torch.device("cuda"))


def has_end(content: bytes) -> bool:
    """nvJPEG fills the missing parts of a file that was cut off with grey, and reports no error."""
    return _END in content[-_END_WITHIN:]


def decode_to_device(files: Sequence[Tensor], plans: Sequence[DecodePlan], device: torch.device) -> list[Tensor]:
    """Files (uint8 on the CPU) as pixels on the device: [height, width, 3], upright. RuntimeError if one can't be decoded."""
    if not files:
        return []
    from torchvision.io import ImageReadMode, decode_jpeg

    decoded: list[Tensor] = decode_jpeg(list(files), mode=ImageReadMode.RGB, device=device)
    alike: dict[tuple[Any, ...], list[int]] = {}
    for place, (image, plan) in enumerate(zip(decoded, plans, strict=True)):
        alike.setdefault((image.shape, plan), []).append(place)
    found: dict[int, Tensor] = {}
    for (_, plan), places in alike.items():  # one launch for all of one size, not one for each
        images = torch.stack([decoded[place] for place in places])
        found |= zip(places, _as_planned(images, plan).unbind(), strict=True)
    return [found[place] for place in range(len(files))]


def _as_planned(images: Tensor, plan: DecodePlan) -> Tensor:
    """[B, 3, H, W] to [B, height, width, 3], contiguous."""
    size = -(-plan.stage_height // plan.factor), -(-plan.stage_width // plan.factor)
    if images.shape[-2:] != size:
        images = torch.nn.functional.interpolate(images.float(), size=size, mode="area").round().to(torch.uint8)
    return _upright(images.permute(0, 2, 3, 1), plan.orientation).contiguous()


def _upright(images: Tensor, orientation: int) -> Tensor:
    """As `upright`, for tensors [B, height, width, 3], whose steps can't be negative."""
    if orientation >= 5:
        images = images.transpose(1, 2)
    mirrored = [axis for axis, turns in ((1, (3, 4, 7, 8)), (2, (2, 3, 6, 7))) if orientation in turns]
    return images.flip(mirrored) if mirrored else images
