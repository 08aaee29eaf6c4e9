"""A folder of JPEGs comes as random crops of 224 px 1.25 times as fast as by DataLoader and PIL on two cores, 5 times later."""

from __future__ import annotations

import math
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from _data import spending, spread_photos
from evidence import Report, options, rounds, take_turns
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, get_worker_info

import flatout as fo

SIZE, BATCH, WORKERS = 224, 64, 2
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
SCALE, RATIO, TRIES = (0.08, 1.0), (3 / 4, 4 / 3), 10
AUGMENT = ["random_resized_crop", "flip"]
UNIT, CPU_UNIT = "images/s", "CPU ms an image"

OURS_FIRST, OURS_SECOND = "flatout, first epoch", "flatout, second epoch"
THEIRS = f"DataLoader and PIL, {WORKERS} workers"


class Folder(Dataset[tuple[Tensor, int]]):
    """What torchvision's ImageFolder, RandomResizedCrop, flip, to float and normalize do, by the fewest steps PIL has for it.

    The box is cut out and scaled in one call (bilinear; PIL widens the filter when it shrinks). `draft` is not used: it would
    decode at another scale for each box, which torchvision does not.
    """

    def __init__(self, folder: Path) -> None:
        classes = sorted(path.name for path in folder.iterdir())
        self._files = [(str(path), target) for target, name in enumerate(classes) for path in sorted((folder / name).iterdir())]
        self._scale = torch.tensor([1 / (255 * std) for std in STD]).view(3, 1, 1)
        self._shift = torch.tensor([-mean / std for mean, std in zip(MEAN, STD, strict=True)]).view(3, 1, 1)

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, row: int) -> tuple[Tensor, int]:
        from PIL import Image

        path, target = self._files[row]
        with Image.open(path) as file:
            image = file.convert("RGB")
        box = random_box(*image.size)
        image = image.resize((SIZE, SIZE), Image.Resampling.BILINEAR, box=box)
        if random.random() < 0.5:
            image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1)
        return torch.addcmul(self._shift, pixels.to(torch.float32), self._scale), target


def random_box(width: int, height: int) -> tuple[int, int, int, int]:
    """The rule of random_resized_crop: ten tries, then the middle."""
    for _ in range(TRIES):
        area = width * height * random.uniform(*SCALE)
        ratio = math.exp(random.uniform(math.log(RATIO[0]), math.log(RATIO[1])))
        wide, high = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < wide <= width and 0 < high <= height:
            left, top = random.randint(0, width - wide), random.randint(0, height - high)
            return left, top, left + wide, top + high
    wide, high = min(width, round(height * RATIO[1])), min(height, round(width / RATIO[0]))
    left, top = (width - wide) // 2, (height - high) // 2
    return left, top, left + wide, top + high


def seed_worker(_: int) -> None:
    info = get_worker_info()
    random.seed(0 if info is None else info.seed)


def epoch(batches: Iterator[Tensor], rows: int) -> int:
    """All of them must come, as float32 of the shape asked for."""
    seen = 0
    for x in batches:
        if x.dtype != torch.float32 or x.shape[1:] != (3, SIZE, SIZE):
            raise RuntimeError(f"a batch is {x.dtype} of {list(x.shape)}")
        seen += len(x)
    if seen != rows:
        raise RuntimeError(f"{seen} images came, the folder has {rows}")
    return seen


class Arms:
    """One round is: DataLoader's epoch; flatout's first epoch, from the folder's listing on; its second one."""

    def __init__(self, folder: Path, rows: int, workers: int | str) -> None:
        self.cpu_ms: dict[str, list[float]] = {}
        self.stats: dict[str, Any] = {}
        self._folder, self._rows, self._workers = folder, rows, workers
        self._loader: fo.Loader | None = None

    def theirs(self) -> float:
        """Its start included, as that of flatout is: two processes are forked, the folder is listed."""
        with spending() as spent:
            data = Folder(self._folder)
            loader = DataLoader(data, BATCH, shuffle=True, num_workers=WORKERS, worker_init_fn=seed_worker)
            epoch((x for x, _ in loader), self._rows)
            del loader
        return self._noted(THEIRS, spent.seconds, spent.cpu_s)

    def first(self) -> float:
        if self._loader is not None:
            self._loader.close()
        with spending() as spent:
            data = fo.data.images(self._folder, size=SIZE, augment=AUGMENT)
            self._loader = fo.loader(data, BATCH, device="cpu", workers=self._workers)
            epoch((batch["x"] for batch in self._loader), self._rows)
        return self._noted(OURS_FIRST, spent.seconds, spent.cpu_s)

    def second(self) -> float:
        loader = self._loader
        assert loader is not None
        with spending() as spent:
            epoch((batch["x"] for batch in loader), self._rows)
        self.stats = loader.stats()
        loader.close()
        return self._noted(OURS_SECOND, spent.seconds, spent.cpu_s)

    def _noted(self, arm: str, seconds: float, cpu_s: float) -> float:
        self.cpu_ms.setdefault(arm, []).append(1000 * cpu_s / self._rows)
        return self._rows / seconds


def main() -> int:
    parser = options(__doc__, repeats=9)
    parser.add_argument("--workers", default="auto", help="reading threads of flatout's arm, by default its own choice")
    asked = parser.parse_args()
    files, distinct = (48, 12) if asked.smoke else (1024, 300)
    repeats = 2 if asked.quick or asked.smoke else asked.repeats
    workers = asked.workers if asked.workers == "auto" else int(asked.workers)
    report = Report("photos", str(__doc__), torch.device("cpu"))
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "photos"
        made = spread_photos(folder, files, distinct)
        arms = Arms(folder, files, workers)
        turns: dict[str, Callable[[], float]] = {THEIRS: arms.theirs, OURS_FIRST: arms.first, OURS_SECOND: arms.second}
        began_s = time.perf_counter()
        take_turns(turns, 1)  # libraries are loaded and the files are in the page cache from here on
        arms.cpu_ms.clear()
        for name, values in in_order(turns, repeats, asked.within).items():
            report.arm(name, UNIT, values)
    for name, values in arms.cpu_ms.items():
        report.arm(f"{name}: CPU time", CPU_UNIT, values)
    report.conditions = {
        **made,
        "size": SIZE,
        "batch": BATCH,
        "augment": [*AUGMENT, "normalize"],
        "output": "float32 [64, 3, 224, 224]",
        "flatout": {"tier": "auto", "workers": workers, "decoder": "turbo", "stats_of_the_last_round": arms.stats},
        "data_loader": {"workers": WORKERS, "prefetch_factor": 2, "torch_threads_of_a_worker": 1, "decode": "whole, PIL"},
        "files_in_page_cache": True,
        "seconds": round(time.perf_counter() - began_s, 1),
        "versions": versions(),
    }
    report.ratio("first epoch over DataLoader and PIL", OURS_FIRST, THEIRS, at_least=1.25)
    report.ratio("second epoch over DataLoader and PIL", OURS_SECOND, THEIRS, at_least=5)
    return report.finish(asked)


def in_order(turns: dict[str, Callable[[], float]], repeats: int, within_s: float | None) -> dict[str, list[float]]:
    """As `take_turns`, but the second epoch is always the one after the first: every other round begins with flatout."""
    values: dict[str, list[float]] = {name: [] for name in turns}
    ours = {OURS_FIRST: turns[OURS_FIRST], OURS_SECOND: turns[OURS_SECOND]}
    theirs = {THEIRS: turns[THEIRS]}
    for number in rounds(repeats, within_s):
        for part in (theirs, ours) if number % 2 else (ours, theirs):
            for name, arm in part.items():
                values[name].append(arm())
        shown = ", ".join(f"{name} {found[-1]:,.6g}" for name, found in values.items())
        print(f"round {number + 1} of {repeats}: {shown}", file=sys.stderr, flush=True)
    return values


def versions() -> dict[str, str]:
    import PIL
    import simplejpeg

    return {"pillow": PIL.__version__, "simplejpeg": simplejpeg.__version__, "numpy": np.__version__}


if __name__ == "__main__":
    raise SystemExit(main())
