"""The data of the benchmarks: real sets where they lie, or made ones of their shape; and what a stretch of work took."""

from __future__ import annotations

import io
import os
import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np


def real_data(path: str) -> Path | None:
    """A data set by its path below $FLATOUT_DATA, or below shared/data beside the checkout; None where it is absent."""
    beside = Path(__file__).parent.parent.parent / "shared" / "data"
    found = Path(os.environ.get("FLATOUT_DATA", beside)) / path
    return found if found.exists() else None


def make_photo(draw: np.random.Generator, width: int = 500, height: int = 375, about_bytes: int = 110_000) -> bytes:
    """A JPEG of blurred noise with some grain: as large, and about as much work to decode, as a photograph of that size."""
    from PIL import Image

    coarse = Image.fromarray(draw.integers(0, 256, (12, 16, 3), dtype=np.uint8))
    smooth = np.asarray(coarse.resize((width, height), Image.Resampling.BICUBIC), dtype=np.int16)
    grain = draw.normal(0, 14, (height, width, 1)).astype(np.int16)
    image = Image.fromarray((smooth + grain).clip(0, 255).astype(np.uint8))
    low, high = 30, 98
    content = b""
    while low < high:  # the quality that comes nearest to the size wanted
        quality = (low + high + 1) // 2
        content = _jpeg(image, quality)
        low, high = (quality, high) if len(content) <= about_bytes else (low, quality - 1)
    return content


def _jpeg(image: Any, quality: int) -> bytes:
    file = io.BytesIO()
    image.save(file, "JPEG", quality=quality)
    return file.getvalue()


def spread_photos(folder: Path, files: int, distinct: int, classes: int = 2) -> dict[str, Any]:
    """A folder of class folders with `files` names. Real photographs where they are, else made ones; each is linked as often as
    it takes, so that the disk holds few and a loader sees many. Says what was done."""
    folder.mkdir()
    real = real_data("photos")
    if real is not None:
        found = sorted(path for path in real.rglob("*") if path.suffix.lower() in (".jpg", ".jpeg"))[:distinct]
        contents: Iterator[bytes] = (path.read_bytes() for path in found)
        what = f"{len(found)} photographs"
    else:
        draw = np.random.default_rng(0)
        contents = (make_photo(draw) for _ in range(distinct))
        what = f"{distinct} made JPEGs of 500x375"
    return _link_all(folder, contents, files, classes, what)


def made_photos(folder: Path, files: int, distinct: int, classes: int) -> dict[str, Any]:
    """As `spread_photos`, of made photos alone: every machine has the same."""
    folder.mkdir()
    draw = np.random.default_rng(0)
    contents = (make_photo(draw) for _ in range(distinct))
    return _link_all(folder, contents, files, classes, f"{distinct} made JPEGs of 500x375")


def _link_all(folder: Path, contents: Iterator[bytes], files: int, classes: int, what: str) -> dict[str, Any]:
    for number in range(classes):
        (folder / f"class{number:03}").mkdir()
    kept: list[Path] = []
    total = 0
    for content in contents:
        path = folder / f"class{len(kept) % classes:03}" / f"{len(kept):06}.jpg"
        path.write_bytes(content)
        kept.append(path)
        total += len(content)
    for number in range(len(kept), files):
        (folder / f"class{number % classes:03}" / f"{number:06}.jpg").hardlink_to(kept[number % len(kept)])
    return {"photos": files, "from": f"{what}, hard links", "mean_file_bytes": round(total / len(kept))}


@dataclass
class Spent:
    seconds: float = 0.0
    cpu_s: float = 0.0  # of this process and of those it started and has waited for


@contextmanager
def spending() -> Iterator[Spent]:
    spent = Spent()
    began_s, cpu_s = time.perf_counter(), _cpu_s()
    yield spent
    spent.seconds, spent.cpu_s = time.perf_counter() - began_s, _cpu_s() - cpu_s


def _cpu_s() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)
