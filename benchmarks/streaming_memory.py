"""Ten epochs of streamed data take no more host memory than two: it grows by less than 2%, whatever the source."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import psutil
import torch
from _data import spread_photos
from evidence import Bar, Report, options, rounds

import flatout as fo
from flatout.data.cache.cache import Cache
from flatout.data.feeds.feed import feed
from flatout.data.source import Batch
from flatout.data.sources.tables import encoding
from flatout.data.sources.tables.row_files import RowFiles

EPOCHS, FROM = 10, 2  # growth is counted from the second epoch: in the first, libraries and buffers come to be
LIMIT = 0.02
PHOTOS_BATCH = 64
BETWEEN_S = 0.02  # two looks at the memory
WHOLE, OWN = "RSS", "RSS less the pages of mapped files"  # those the system takes back when it needs room


@dataclass(frozen=True)
class Sizes:
    photos: int = 960
    distinct: int = 300
    table_rows: int = 1_000_000
    table_columns: int = 40
    bound_bytes: int = 32 << 20
    tokens: int = 50_000_000
    window: int = 1024


TINY = Sizes(photos=64, distinct=6, table_rows=40_000, table_columns=8, bound_bytes=256 << 10, tokens=17_000_000, window=4096)


@dataclass
class Seen:
    """Memory over the epochs of one process."""

    epochs: list[list[int]] = field(default_factory=list)
    _process: psutil.Process = field(default_factory=psutil.Process)
    _looked_s: float = 0.0

    def look(self, own: bool, now: bool = False) -> None:
        if now or time.perf_counter() - self._looked_s > BETWEEN_S:
            memory = self._process.memory_info()
            self.epochs[-1].append(memory.rss - memory.shared if own else memory.rss)
            self._looked_s = time.perf_counter()


Epochs = Iterator[Iterator[Batch]]


def make_files(folder: Path, size: Sizes) -> dict[str, Any]:
    """What the cases read, made beforehand: memory that making it took and gave back would hide growth."""
    import pandas as pd  # type: ignore[import-untyped]

    made = spread_photos(folder / "photos", size.photos, size.distinct)
    draw = np.random.default_rng(0)
    columns = {f"c{number}": draw.standard_normal(size.table_rows, dtype=np.float32) for number in range(size.table_columns)}
    pd.DataFrame({**columns, "y": draw.integers(0, 2, size.table_rows)}).to_parquet(folder / "table.parquet")
    draw.integers(0, 50257, size.tokens, dtype=np.uint16).tofile(folder / "tokens.bin")
    return made


def photos(folder: Path, size: Sizes) -> tuple[Epochs, dict[str, Any]]:
    """Decoded from their files in every epoch, kept nowhere."""
    data = fo.data.images(folder / "photos", size=224, augment=["random_resized_crop", "flip"])
    loader = fo.loader(data, PHOTOS_BATCH, device="cpu", tier="streamed")
    how = {"photos": len(data.train), "tier": "streamed", "batch": PHOTOS_BATCH}
    return (iter(loader) for _ in range(EPOCHS)), how


def cached_photos(folder: Path, size: Sizes) -> tuple[Epochs, dict[str, Any]]:
    """Written to a cache as they are first decoded, mapped from there on."""
    data = fo.data.images(folder / "photos", size=224, augment=["random_resized_crop", "flip"])
    cache = tempfile.TemporaryDirectory()
    served = feed(data, "mapped", PHOTOS_BATCH, "cpu", cache=Cache(Path(cache.name)))

    def epoch() -> Iterator[Batch]:
        for _ in range(size.photos // PHOTOS_BATCH):
            yield served.next()

    how = {"photos": len(data.train), "tier": "mapped", "batch": PHOTOS_BATCH}
    return (epoch() for _ in range(EPOCHS)), how


def table(folder: Path, size: Sizes) -> tuple[Epochs, dict[str, Any]]:
    """Encoded rows that take more than the bound lie in files."""
    encoding.MEMORY_BYTES = size.bound_bytes
    data = fo.data.table(folder / "table.parquet", label="y")
    if not isinstance(data.train, RowFiles):
        raise RuntimeError(f"{data.train.stored_bytes} bytes of rows are in memory, the bound is {size.bound_bytes}")
    loader = fo.loader(data, 1024, device="cpu", tier="streamed")
    how = {"rows": size.table_rows, "bytes": data.train.stored_bytes, "bound_bytes": size.bound_bytes, "batch": 1024}
    return (iter(loader) for _ in range(EPOCHS)), {**how, "tier": "streamed, from mapped files"}


def tokens(folder: Path, size: Sizes) -> tuple[Epochs, dict[str, Any]]:
    data = fo.data.text(folder / "tokens.bin", encoding="tokens", vocabulary=50257, window=size.window, holdout=0.0)
    loader = fo.loader(data, 32, device="cpu", tier="streamed")
    how = {"tokens": size.tokens, "bytes": 2 * size.tokens, "window": size.window, "batch": 32}
    return (iter(loader) for _ in range(EPOCHS)), {**how, "tier": "streamed, from the mapped file"}


@dataclass(frozen=True)
class Case:
    name: str
    begin: Callable[[Path, Sizes], tuple[Epochs, dict[str, Any]]]
    own: bool  # whether pages of mapped files are left out


CASES = {
    "photos": Case("photos from their files", photos, own=False),
    "table": Case("a mapped table", table, own=True),
    "tokens": Case("a mapped token file", tokens, own=True),
    "cached_photos": Case("photos from a mapped cache", cached_photos, own=True),
}


def watch(case: Case, folder: Path, size: Sizes) -> dict[str, Any]:
    """In a process of its own: what another case has freed would hide growth."""
    seen = Seen()
    epochs, how = case.begin(folder, size)
    batches, ends = 0, []
    for epoch in epochs:
        seen.epochs.append([])
        for _ in epoch:
            seen.look(case.own)
            batches += 1
        seen.look(case.own, now=True)
        ends.append(seen.epochs[-1][-1])
    middles = [round(median(found)) for found in seen.epochs]
    return {"medians": middles, "ends": ends, "peaks": [max(found) for found in seen.epochs], "batches": batches, "how": how}


def in_child(name: str, folder: Path, smoke: bool) -> dict[str, Any]:
    command = [sys.executable, __file__, "--case", name, "--files", str(folder), *(["--smoke"] if smoke else [])]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{name} ended with {done.returncode}: {done.stderr.strip()[-2000:]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def growth(values: list[int]) -> float:
    return values[-1] / values[FROM - 1] - 1


def main() -> int:
    parser = options(__doc__, repeats=3)
    parser.add_argument("--case", choices=CASES, help=argparse.SUPPRESS)  # one of them, in this process
    parser.add_argument("--files", type=Path, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    size = TINY if asked.smoke else Sizes()
    if asked.case:
        print(json.dumps(watch(CASES[asked.case], asked.files, size)))
        return 0
    repeats = 1 if asked.quick or asked.smoke else asked.repeats
    report = Report("streaming_memory", str(__doc__), torch.device("cpu"))
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in CASES}
    with tempfile.TemporaryDirectory() as scratch:
        made = make_files(Path(scratch), size)
        for number in rounds(repeats, asked.within):
            for name in CASES:
                found[name].append(in_child(name, Path(scratch), asked.smoke))
            shown = ", ".join(f"{name} {growth(runs[-1]['peaks']):+.2%}" for name, runs in found.items())
            print(f"round {number + 1} of {repeats}: {shown}", file=sys.stderr, flush=True)
    report.conditions = {
        "epochs": EPOCHS,
        "files_of_photos": made,
        "memory_of_an_epoch": f"the most of looks {BETWEEN_S} s apart, while batches are read ahead. Their median, also kept, "
        "moves by a batch, several percent, with the moment of the looks",
        "growth": f"of epoch {EPOCHS} over epoch {FROM}",
        "cases": {
            name: {"memory": OWN if CASES[name].own else WHOLE, **runs[0]["how"], "runs": [_short(run) for run in runs]}
            for name, runs in found.items()
        },
    }
    for name, runs in found.items():
        case = CASES[name]
        report.arm(f"{case.name}: epoch {EPOCHS}", "MB", [run["peaks"][-1] / 1e6 for run in runs])
        grown = report.arm(f"{case.name}: growth", "", [growth(run["peaks"]) for run in runs])
        report.arm(f"{case.name}: growth of the median", "", [growth(run["medians"]) for run in runs])
        report.bars.append(Bar(f"{case.name}: growth", grown.median, LIMIT, False, grown.low, grown.high))
    return report.finish(asked)


def _short(run: dict[str, Any]) -> dict[str, Any]:
    in_mb = {name: [round(value / 1e6, 1) for value in run[name]] for name in ("medians", "ends", "peaks")}
    return {"batches": run["batches"], **{f"{name}_mb": values for name, values in in_mb.items()}}


if __name__ == "__main__":
    raise SystemExit(main())
