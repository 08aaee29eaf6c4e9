"""Decoders by name."""

from __future__ import annotations

from flatout.base.errors import MachineError, UsageError, did_you_mean
from flatout.data.decoding.decode import Decoder, Turbo
from flatout.data.decoding.nvjpeg import NvJpeg

DECODERS = ("auto", "turbo", "nvjpeg")


def make_decoder(name: str) -> Decoder:
    """ "auto" is "turbo" on every machine."""
    if name not in DECODERS:
        raise UsageError(f"unknown decoder {name!r}; {did_you_mean(str(name), DECODERS)}")
    if name == "nvjpeg":
        missing = NvJpeg.missing()
        if missing:
            raise MachineError(f"decoder='nvjpeg' can't be used: {missing}; use decoder='turbo', which decodes on the CPU")
        return NvJpeg()
    return Turbo()
