"""A cache folder in which this machine counts as measured, with made-up figures: measuring it takes seconds."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from functools import cache
from pathlib import Path

import torch

from flatout.machine.cache import CeilingsCache
from flatout.machine.ceilings import Ceilings, MeasuredRate
from flatout.machine.facts import fingerprint, read_facts


def keep_ceilings(folder: Path) -> None:
    rate, bandwidth, launch_s = (MeasuredRate(value, value, value, 5) for value in (1e11, 1e10, 2e-6))
    known = Ceilings("cpu", {"fp32": rate}, copy_bytes_per_s=bandwidth, launch_s=launch_s)
    CeilingsCache(folder).save(fingerprint(read_facts()), torch.device("cpu"), True, known, ())


@cache
def known_cache() -> Path:
    """One for all tests of this process."""
    folder = Path(tempfile.mkdtemp(prefix="flatout-known-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    keep_ceilings(folder)
    return folder
