"""Training with flatout's settings uses 90% less energy per token or image than the plain fp32 script of the same model."""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gpt2
import numpy as np
import resnet50
import torch
import torch.nn.functional as F
from evidence import Report, gpu_or_leave, options, take_turns
from torch import Tensor, nn
from torch.optim import SGD, AdamW

import flatout as fo
from flatout.machine.energy import device_energy
from flatout.measure.clock import synchronize
from flatout.models.gpt import gpt

OURS, PLAIN = "flatout", "plain fp32 script"
WARMUP_STEPS, LEAST_S = 2, 10.0  # a counter that moves every 0.1 s is then exact to 1%


class PlainScript:
    """As a tutorial writes it: float32, nothing compiled, the optimizer of torch with its defaults."""

    def __init__(self, step: Callable[[], Tensor], optimizer: torch.optim.Optimizer, units: int, device: torch.device) -> None:
        self._loss_of, self._optimizer, self._units, self._device = step, optimizer, units, device

    def joules_per_unit(self) -> float:
        self._steps(WARMUP_STEPS)
        meter = device_energy(self._device)
        began_j, began_s, steps = meter.read_j(), time.monotonic(), 0
        while time.monotonic() - began_s < LEAST_S:
            self._steps(4)
            steps += 4
        ended_j = meter.read_j()
        meter.close()
        assert began_j is not None and ended_j is not None
        return (ended_j - began_j) / (steps * self._units)

    def _steps(self, count: int) -> None:
        for _ in range(count):
            self._optimizer.zero_grad()
            self._loss_of().backward()
            self._optimizer.step()
        synchronize(self._device)


def plain_gpt2(size: gpt2.Size, tokens: Path, device: torch.device) -> PlainScript:
    torch.manual_seed(0)
    model = gpt(size.vocabulary, size.window, **size.model["gpt"]).to(device).train()
    stream = torch.from_numpy(np.fromfile(tokens, dtype=np.uint16).astype(np.int64)).to(device)
    offsets = torch.arange(size.window + 1, device=device)

    def loss() -> Tensor:
        starts = torch.randint(len(stream) - size.window - 1, (size.batch, 1), device=device)
        windows = stream[starts + offsets]
        return F.cross_entropy(model(windows[:, :-1]).flatten(0, -2), windows[:, 1:].flatten())

    return PlainScript(loss, AdamW(model.parameters(), lr=gpt2.LR), size.batch * size.window, device)


def plain_resnet50(size: resnet50.Size, device: torch.device) -> PlainScript:
    model: nn.Module = resnet50.network(size).to(device).train()
    rows = 4 * size.batch
    x = torch.randint(0, 256, (rows, 3, size.pixels, size.pixels), dtype=torch.uint8, device=device)
    y = torch.randint(0, size.classes, (rows,), device=device)
    mean, deviation = (torch.tensor(of, device=device).view(3, 1, 1) for of in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))

    def loss() -> Tensor:
        chosen = torch.randint(0, rows, (size.batch,), device=device)
        return F.cross_entropy(model((x[chosen] / 255 - mean) / deviation), y[chosen])

    optimizer = SGD(model.parameters(), lr=resnet50.LR, momentum=resnet50.MOMENTUM)
    return PlainScript(loss, optimizer, size.batch, device)


def flatout_arm(recipe: Callable[[], fo.Recipe], unit: str, device: torch.device, notes: dict[str, Any]) -> Callable[[], float]:
    """Joules per token or sample of training, as the run's result has them."""

    def measure() -> float:
        with tempfile.TemporaryDirectory() as runs:
            result = fo.run(recipe(), runs=runs, fresh=True, cache=None, planning="off", quiet=True).result
        if device.type == "cuda":
            torch.cuda.empty_cache()
        device_figures = result["energy"]["device"]
        notes["energy"], notes["train_seconds"] = result["energy"], result["train_seconds"]
        return float(device_figures[f"per_{unit}_j"])

    return measure


def arms_of(model: str, folder: Path, tiny: bool, device: torch.device, notes: dict[str, Any]) -> dict[str, Any]:
    if model == "gpt2":
        size = gpt2.TINY if tiny else gpt2.Size()
        tokens = folder / "tokens.bin"
        np.random.default_rng(0).integers(0, size.vocabulary, size.tokens, dtype=np.uint16).tofile(tokens)
        ours = flatout_arm(lambda: gpt2.recipe_of(size, 20 if tiny else 128, tokens, device), "token", device, notes)
        return {OURS: ours, PLAIN: plain_gpt2(size, tokens, device).joules_per_unit}
    photos = resnet50.TINY if tiny else resnet50.Size()
    data = resnet50.in_memory(photos, photos.resident)
    steps = 20 if tiny else 400
    ours = flatout_arm(lambda: resnet50.recipe_of(photos, data, device, "resident", f"{steps} steps"), "sample", device, notes)
    return {OURS: ours, PLAIN: plain_resnet50(photos, device).joules_per_unit}


def main() -> int:
    parser = options(__doc__, repeats=3)
    parser.add_argument("--model", choices=("gpt2", "resnet50"), default="gpt2")
    asked = parser.parse_args()
    device = gpu_or_leave(asked.smoke)
    meter = device_energy(device)
    if meter.why_unavailable:
        print(f"no meter of {device} can be read: {meter.why_unavailable}", file=sys.stderr)
        return 0 if asked.smoke else 2
    report, notes = Report(f"energy_{asked.model}", str(__doc__), device), dict[str, Any]()
    with tempfile.TemporaryDirectory() as folder:
        arms = arms_of(asked.model, Path(folder), asked.smoke, device, notes)
        unit = "J/token" if asked.model == "gpt2" else "J/image"
        for name, values in take_turns(arms, 1 if asked.quick else asked.repeats, asked.within).items():
            report.arm(name, unit, values)
    report.conditions = {"meter": meter.name, **notes}
    ours, plain = (report.arms[name]["values"] for name in (OURS, PLAIN))
    report.arm(
        "energy of the plain script that is left", "share", [one / other for one, other in zip(ours, plain, strict=True)]
    )
    report.bar("at most a tenth of the plain script's energy", "energy of the plain script that is left", 0.10, at_least=False)
    return report.finish(asked)


if __name__ == "__main__":
    raise SystemExit(main())
