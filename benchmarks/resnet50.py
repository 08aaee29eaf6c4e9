"""ResNet-50 trains from raw JPEG files at 95% of its speed with data already on the GPU, and at 80% in the first epoch."""

from __future__ import annotations

import os
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import torch
import torch.nn.functional as F
from _data import made_photos
from _hand_written import fast_products
from evidence import Report, gpu_or_leave, options, rounds
from torch import Tensor, nn
from torch.optim import SGD

import flatout as fo
from flatout.base.events import Event
from flatout.measure.clock import synchronize

AUGMENT = ["random_resized_crop", "flip"]
LR, MOMENTUM, WEIGHT_DECAY, WARMUP_STEPS = 0.1, 0.9, 5e-5, 5
CEILING, RESIDENT = "one batch on the GPU, used again and again", "flatout, crops on the GPU beforehand"
DECODING = "every core decodes JPEG files, nothing else"
FIRST, LATER = "flatout from JPEG files, first epoch", "flatout from JPEG files, later epochs"


@dataclass(frozen=True)
class Size:
    pixels: int = 224
    batch: int = 256
    files: int = 30_720  # 120 steps
    distinct: int = 300
    classes: int = 1000
    epochs: int = 3
    skipped: int = 40  # steps of the first epoch: while the model was compiled, some batches were read ahead
    log_every: int = 8
    resident: int = 4096  # images of the arm that has them on the GPU


TINY = Size(pixels=32, batch=8, files=96, distinct=6, classes=3, skipped=4, log_every=2, resident=64)


def network(size: Size) -> nn.Module:
    """torchvision's, where it is."""
    torch.manual_seed(0)
    try:
        from torchvision.models import resnet50
    except ImportError:
        return stand_in(size.classes)
    made: nn.Module = resnet50(num_classes=size.classes)
    return made


def stand_in(classes: int) -> nn.Module:
    body = [nn.Conv2d(3, 16, 7, stride=4), nn.BatchNorm2d(16), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return nn.Sequential(*body, nn.Linear(16, classes))


def pins(size: Size, device: torch.device, tier: str) -> dict[str, Any]:
    """Whatever the planner would say: the figure is that of these settings."""
    pinned = {"device": device.type, "tier": tier, "log_every": size.log_every, "checkpoint_every": "1 h"}
    if device.type == "cpu":
        return pinned
    gpu = {"precision": "bf16", "compile": "on", "channels_last": True, "graph": True, "deterministic": False}
    return pinned | gpu


def recipe_of(size: Size, data: Any, device: torch.device, tier: str, budget: str) -> fo.Recipe:
    return fo.Recipe(
        data=data,
        model=lambda: network(size),
        batch=size.batch,
        lr=LR,
        weight_decay=WEIGHT_DECAY,
        optimizer={"sgd": {"momentum": MOMENTUM}},
        budget=budget,
        evaluate=None,
        settings=pins(size, device, tier),
    )


class Cores:
    """Where the time of the machine's cores went, step by step: what others took of them is not ours to use."""

    def __init__(self) -> None:
        self._times: dict[int, Any] = {}

    def __call__(self, event: Event) -> None:
        if event["kind"] == "step":
            self._times[event["step"]] = psutil.cpu_times()

    def shares(self, after: int, until: int) -> dict[str, float]:
        seen = [times for step, times in self._times.items() if after <= step <= until]
        spent = {name: getattr(seen[-1], name) - getattr(seen[0], name) for name in ("user", "system", "idle", "steal")}
        return {name: round(spent_s / max(sum(spent.values()), 1e-9), 3) for name, spent_s in spent.items()}


def run(recipe: fo.Recipe, device: torch.device, *watching: Any) -> tuple[list[Event], dict[str, Any]]:
    events: list[Event] = []
    with tempfile.TemporaryDirectory() as folder:
        options: Any = {"fresh": True, "cache": Path(folder) / "cache", "observers": [events.append, *watching]}
        result = fo.run(recipe, runs=Path(folder) / "runs", **options).result
    if device.type == "cuda":
        torch.cuda.empty_cache()
    return events, result


def rate(events: list[Event], after: int, until: int) -> float:
    """Images/s between the log points of a stretch of steps."""
    points = [event for event in events if event["kind"] == "step" and after <= event["step"] <= until]
    if len(points) < 2:
        raise RuntimeError(f"{len(points)} log points from step {after} to {until}: too few to tell a rate")
    return float((points[-1]["samples"] - points[0]["samples"]) / (points[-1]["elapsed_s"] - points[0]["elapsed_s"]))


def saved_by(events: list[Event]) -> int | None:
    """The last step before the run's first save was done: rates from later steps are without it."""
    saved_s = min((event["t"] for event in events if event["kind"] == "checkpoint_saved"), default=0.0)
    return max((event["step"] for event in events if event["kind"] == "step" and event["t"] < saved_s), default=None)


def from_files(
    size: Size, folder: Path, device: torch.device, decoder: str, tier: str, notes: dict[str, Any]
) -> Callable[[], list[float]]:
    """The rates of the first epoch and of those after it, in one run that starts with nothing decoded."""

    def measure() -> list[float]:
        began_s = time.perf_counter()
        data = fo.data.images(folder, size=size.pixels, augment=AUGMENT, decoder=decoder)
        listed_s = time.perf_counter() - began_s
        cores = Cores()
        events, result = run(recipe_of(size, data, device, tier, f"{size.epochs} epochs"), device, cores)
        steps = size.files // size.batch
        found = [rate(events, size.skipped, steps), rate(events, steps + size.log_every, size.epochs * steps)]
        shares = [cores.shares(size.skipped, steps), cores.shares(steps + size.log_every, size.epochs * steps)]
        notes.setdefault("cores", []).append({"first epoch": shares[0], "later epochs": shares[1]})
        notes.setdefault("reading", []).append(result["reading"])
        print(f"  cores in the first epoch {shares[0]}, later {shares[1]}", flush=True)
        notes["from files"] = {
            "listing_s": round(listed_s, 2),
            "ledger": {row: round(spent_s, 3) for row, spent_s in result["ledger"].items() if spent_s},
            "peak_memory_bytes": result["peak_memory_bytes"],
            "first_save_done_after_step": saved_by(events),
            "settings": result["plan"]["settings"],
            "degraded": [f"{event['what']}: {event['why']}" for event in events if event["kind"] == "degraded"],
        }
        return found

    return measure


def in_memory(size: Size, rows: int) -> Any:
    """Images that need no decoding and no crop."""
    draw = torch.Generator().manual_seed(0)
    x = torch.randint(0, 256, (rows, 3, size.pixels, size.pixels), dtype=torch.uint8, generator=draw)
    y = torch.randint(0, size.classes, (rows,), generator=draw)
    normalize = {"scale": 1 / 255, "mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]}
    return fo.data.arrays(x, y, layout="chw", classes=size.classes, normalize=normalize)


def from_device(size: Size, device: torch.device) -> Callable[[], float]:
    """flatout's own loop over images that need no decoding and no crop: what the data path costs it is the rest."""
    data = in_memory(size, size.resident)
    steps = max(size.skipped + 8 * size.log_every, 2 * size.skipped)

    def measure() -> float:
        events, _ = run(recipe_of(size, data, device, "resident", f"{steps} steps"), device)
        return rate(events, size.skipped, steps)

    return measure


def decoding(size: Size, folder: Path, decoder: str) -> Callable[[], float]:
    """What the cores decode when they do nothing else: no first epoch is faster."""
    photos: Any = fo.data.images(folder, size=size.pixels, decoder=decoder).train
    pieces = torch.arange(min(len(photos), size.files)).split(photos.piece_rows)
    most_bytes = photos.piece_rows * int(photos.sizes.max())
    threads = len(os.sched_getaffinity(0))
    own = threading.local()

    def take(name: str, length: int) -> Tensor:
        if not hasattr(own, "buffers"):
            own.buffers = {"pixels": torch.empty(most_bytes, dtype=torch.uint8)}
        buffer: Tensor = own.buffers.setdefault(name, torch.empty(photos.piece_rows, dtype=torch.int64))
        return buffer[:length]

    def measure() -> float:
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(lambda rows: photos.read_with(rows, take), pieces[: 2 * threads]))
            began_s = time.perf_counter()
            list(pool.map(lambda rows: photos.read_with(rows, take), pieces))
            return sum(map(len, pieces)) / (time.perf_counter() - began_s)

    return measure


class Ceiling:
    """A loop written by hand around one batch that is there: compiled loss, bf16, channels last, fused SGD, no waiting."""

    def __init__(self, size: Size, device: torch.device) -> None:
        self._size, self._device, self._on_gpu = size, device, device.type == "cuda"
        self._model = network(size).to(device=device, memory_format=torch.channels_last).train()  # type: ignore[call-overload]
        self._optimizer = SGD(self._model.parameters(), lr=LR, momentum=MOMENTUM, weight_decay=WEIGHT_DECAY, fused=True)
        x = torch.randn(size.batch, 3, size.pixels, size.pixels, device=device)
        self._x = x.contiguous(memory_format=torch.channels_last)
        self._y = torch.randint(0, size.classes, (size.batch,), device=device)
        self._loss = torch.compile(self._loss_of, dynamic=False) if self._on_gpu else self._loss_of

    def images_per_s(self, steps: int) -> float:
        with fast_products():
            for _ in range(WARMUP_STEPS):
                self._step()
            synchronize(self._device)
            began_s = time.perf_counter()
            for _ in range(steps):
                self._step()
            synchronize(self._device)
            return steps * self._size.batch / (time.perf_counter() - began_s)

    def _step(self) -> None:
        self._optimizer.zero_grad(set_to_none=True)
        with torch.autocast(self._device.type, dtype=torch.bfloat16, enabled=self._on_gpu):
            loss = self._loss(self._x, self._y)
        loss.backward()
        self._optimizer.step()

    def _loss_of(self, x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(self._model(x).float(), y)


def main() -> int:
    began_s = time.perf_counter()
    parser = options(__doc__, repeats=3)
    parser.add_argument("--decoder", default="auto", help="of flatout's arm: auto (turbo) or nvjpeg")
    parser.add_argument("--tier", default="resident", help="of flatout's arm; resident is what it takes where there is room")
    asked = parser.parse_args()
    device = gpu_or_leave(asked.smoke)
    size = TINY if asked.smoke else Size()
    repeats = 1 if asked.quick or asked.smoke else asked.repeats
    report = Report("resnet50", str(__doc__), device)
    notes: dict[str, Any] = {}
    values: dict[str, list[float]] = {CEILING: [], RESIDENT: [], DECODING: [], FIRST: [], LATER: []}
    with tempfile.TemporaryDirectory() as scratch:
        made = made_photos(Path(scratch) / "photos", size.files, size.distinct, size.classes)
        made_s = time.perf_counter() - began_s
        ceiling = Ceiling(size, device)
        resident = from_device(size, device)
        alone = decoding(size, Path(scratch) / "photos", asked.decoder)
        files = from_files(size, Path(scratch) / "photos", device, asked.decoder, asked.tier, notes)
        ceiling.images_per_s(4)  # compiling; every other arm leaves its own out
        for number in rounds(repeats, asked.within):
            rates = {CEILING: ceiling.images_per_s(4 * size.log_every)}
            print(f"round {number + 1} of {repeats}: {CEILING} {rates[CEILING]:,.0f}", flush=True)
            rates[RESIDENT] = resident()
            print(f"  {RESIDENT} {rates[RESIDENT]:,.0f}", flush=True)
            rates[DECODING] = alone()
            print(f"  {DECODING} {rates[DECODING]:,.0f}", flush=True)
            rates[FIRST], rates[LATER] = files()
            print(f"  {FIRST} {rates[FIRST]:,.0f}, {LATER} {rates[LATER]:,.0f}", flush=True)
            for name, value in rates.items():
                values[name].append(value)
    for name, found in values.items():
        report.arm(name, "images/s", found)
    report.conditions = {
        **made,
        "making_photos_s": round(made_s, 1),
        "files_in_page_cache": True,
        "decoder": asked.decoder,
        "augment": [*AUGMENT, "normalize"],
        "pixels": size.pixels,
        "batch": size.batch,
        "steps_an_epoch": size.files // size.batch,
        "first_epoch_from_step": size.skipped,
        "later_epochs": size.epochs - 1,
        "model": type(network(size)).__name__,
        "runs": notes,
        "seconds": round(time.perf_counter() - began_s, 1),
    }
    report.ratio("first epoch over data on the GPU", FIRST, CEILING, at_least=0.80)
    report.ratio("later epochs over data on the GPU", LATER, CEILING, at_least=0.95)
    return report.finish(asked)


if __name__ == "__main__":
    raise SystemExit(main())
