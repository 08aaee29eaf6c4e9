"""Training GPT-2 or ResNet-50 takes 90% less energy than the plain fp32 script, and 5% less than Lightning's best arm."""

from __future__ import annotations

import argparse
import gc
import itertools
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import _lightning
import gpt2
import numpy as np
import resnet50
import torch
import torch.nn.functional as F
from _hand_written import fast_products
from _peers import Work, lightning_training
from evidence import Report, gpu_or_leave, options, take_turns
from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer

import flatout as fo
from flatout.machine.energy import EnergyMeter, device_energy
from flatout.measure.clock import synchronize
from flatout.models.gpt import gpt

OURS, LIMITED = "flatout", "flatout, power limit of {} W"
PLAIN, LIGHTNING = "plain fp32 script", "Lightning, bf16 and compiled"
# what plan_gpu's plan of GPT-2 chose on an H200, beside the pins of gpt2
CHOSEN = {"graph": True, "loss_head": "joined", "residual": "autocast", "attention": "auto"}


@dataclass(frozen=True)
class Asked:
    """`least_s`: a counter that moves every 0.1 s is exact to 1% over 10 s. With `tiny` and no meter: seconds."""

    device: torch.device
    tiny: bool
    meter: EnergyMeter | None
    notes: dict[str, Any]

    @property
    def least_s(self) -> float:
        return 1.0 if self.tiny else 10.0

    def read(self) -> float:
        found = time.monotonic() if self.meter is None else self.meter.read_j()
        assert found is not None
        return found

    def of_result(self, result: dict[str, Any], unit: str) -> float:
        """Joules per token or sample of training alone, as the run's result has them."""
        figures = result["energy"]["device"]
        return float(1 / result[f"{unit}s_per_s"] if self.meter is None else figures[f"per_{unit}_j"])


class Stretch:
    """Joules of a stretch of steps after `warmup` of them. Call it after each step; true: long enough."""

    def __init__(self, asked: Asked, warmup: int, most_steps: int | None = None) -> None:
        self._asked, self._warmup, self._most = asked, warmup, most_steps
        self._began_s = self._joules = 0.0
        self._steps = 0

    def __call__(self, steps_done: int) -> bool:
        if steps_done < self._warmup or self._steps:
            return bool(self._steps)
        if steps_done == self._warmup:
            synchronize(self._asked.device)
            self._began_s, self._joules = time.monotonic(), self._asked.read()
        elif time.monotonic() - self._began_s >= self._asked.least_s:
            synchronize(self._asked.device)
            self._joules, self._steps = self._asked.read() - self._joules, steps_done - self._warmup
        return bool(self._steps)

    def joules_per(self, units_a_step: int) -> float:
        if not self._steps:
            raise RuntimeError("the training ended before its energy was measured")
        return self._joules / (self._steps * units_a_step)


def plain_script(loss_of: Callable[[], Tensor], optimizer: Optimizer, units: int, asked: Asked) -> Callable[[], float]:
    """As a tutorial writes it: float32, nothing compiled, the optimizer of torch with its defaults."""

    def measure() -> float:
        stretch = Stretch(asked, warmup=2)
        for done in itertools.count(1):
            optimizer.zero_grad()
            loss_of().backward()
            optimizer.step()
            if stretch(done):
                break
        return stretch.joules_per(units)

    return measure


def lightning_arm(training: Callable[[], _lightning.Training], units: int, asked: Asked) -> Callable[[], float]:
    def measure() -> float:
        stretch = Stretch(asked, warmup=8)
        with fast_products():
            _lightning.fit(training(), -1, stretch)
        torch._dynamo.reset()
        free(asked.device)
        return stretch.joules_per(units)

    return measure


def flatout_arm(recipe: Callable[..., fo.Recipe], unit: str, asked: Asked, watts: int = 0) -> Callable[[], float]:
    def measure() -> float:
        made = recipe(**({"power_limit": watts} if watts else {}))
        with tempfile.TemporaryDirectory() as runs:
            run = fo.run(made, runs=runs, fresh=True, cache=None, planning="off", quiet=True)
            result = run.result
            degraded = {event["what"]: event["why"] for event in run.events() if event["kind"] == "degraded"}
        if "power_limit" in degraded:
            raise RuntimeError(f"no power limit of {watts} W: {degraded['power_limit']}")
        free(asked.device)
        name = LIMITED.format(watts) if watts else OURS
        figures = ("energy", "train_seconds", "samples_per_s", "tokens_per_s")
        asked.notes[name] = {figure: result.get(figure) for figure in figures} | {"degraded": degraded}
        return asked.of_result(result, unit)

    return measure


def free(device: torch.device) -> None:
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


# ---- the two models ----


def gpt2_arms(folder: Path, limits: Sequence[int], asked: Asked) -> dict[str, Callable[[], float]]:
    size, device = gpt2.TINY if asked.tiny else gpt2.Size(), asked.device
    tokens = folder / "tokens.bin"
    np.random.default_rng(0).integers(0, size.vocabulary, size.tokens, dtype=np.uint16).tofile(tokens)
    steps, units = 20 if asked.tiny else 128, size.batch * size.window

    def recipe(**settings: Any) -> fo.Recipe:
        return gpt2.recipe_of(size, steps, tokens, device, **({} if asked.tiny else CHOSEN), **settings)

    work = Work(size, tokens, device, warmup=0, stretch=1, stretches=1)
    return {
        **our_arms(recipe, "token", limits, asked),
        LIGHTNING: lightning_arm(lambda: lightning_training(work, size.batch), units, asked),
        PLAIN: plain_gpt2(size, tokens, units, asked),
    }


def our_arms(
    recipe: Callable[..., fo.Recipe], unit: str, limits: Sequence[int], asked: Asked
) -> dict[str, Callable[[], float]]:
    limited = {LIMITED.format(watts): flatout_arm(recipe, unit, asked, watts) for watts in limits}
    return {OURS: flatout_arm(recipe, unit, asked), **limited}


def plain_gpt2(size: gpt2.Size, tokens: Path, units: int, asked: Asked) -> Callable[[], float]:
    def measure() -> float:
        torch.manual_seed(0)
        model = gpt(size.vocabulary, size.window, **size.model["gpt"]).to(asked.device).train()
        stream = torch.from_numpy(np.fromfile(tokens, dtype=np.uint16).astype(np.int64)).to(asked.device)
        offsets = torch.arange(size.window + 1, device=asked.device)

        def loss() -> Tensor:
            starts = torch.randint(len(stream) - size.window - 1, (size.batch, 1), device=asked.device)
            windows = stream[starts + offsets]
            return F.cross_entropy(model(windows[:, :-1]).flatten(0, -2), windows[:, 1:].flatten())

        return plain_script(loss, AdamW(model.parameters(), lr=gpt2.LR), units, asked)()

    return measure


class NormalizedImages(nn.Module):
    """A network that takes images as bytes and gives their loss."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network
        self.mean: Tensor
        self.deviation: Tensor
        for name, of in (("mean", (0.485, 0.456, 0.406)), ("deviation", (0.229, 0.224, 0.225))):
            self.register_buffer(name, torch.tensor(of).view(3, 1, 1))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(self.network((x / 255 - self.mean) / self.deviation), y)


class ImagesOnDevice:
    """Random images that lie on the device, in batches of random rows, without end."""

    def __init__(self, size: resnet50.Size, device: torch.device, memory_format: torch.memory_format) -> None:
        shape = (4 * size.batch, 3, size.pixels, size.pixels)
        self._x = torch.randint(0, 256, shape, dtype=torch.uint8, device=device)
        self._x = self._x.contiguous(memory_format=memory_format)
        self._y = torch.randint(0, size.classes, (len(self._x),), device=device)
        self._batch = size.batch

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        while True:
            rows = torch.randint(0, len(self._x), (self._batch,), device=self._x.device)
            yield self._x[rows], self._y[rows]


def resnet50_arms(limits: Sequence[int], asked: Asked) -> dict[str, Callable[[], float]]:
    size, device = resnet50.TINY if asked.tiny else resnet50.Size(), asked.device
    data = resnet50.in_memory(size, size.resident)
    steps = 20 if asked.tiny else 400
    asked.notes["model"] = type(resnet50.network(size)).__name__

    def recipe(**settings: Any) -> fo.Recipe:
        made = resnet50.recipe_of(size, data, device, "resident", f"{steps} steps")
        return made.model_copy(update={"settings": {**made.settings, **settings}})

    def plain() -> float:
        model = NormalizedImages(resnet50.network(size)).to(device).train()
        batches = iter(ImagesOnDevice(size, device, torch.contiguous_format))
        optimizer = SGD(model.parameters(), lr=resnet50.LR, momentum=resnet50.MOMENTUM)
        return plain_script(lambda: model(*next(batches)), optimizer, size.batch, asked)()

    def training() -> _lightning.Training:
        model = NormalizedImages(resnet50.network(size).to(memory_format=torch.channels_last))  # type: ignore[call-overload]
        return _lightning.Training(model, fused_sgd, ImagesOnDevice(size, device, torch.channels_last), device)

    return {
        **our_arms(recipe, "sample", limits, asked),
        LIGHTNING: lightning_arm(training, size.batch, asked),
        PLAIN: plain,
    }


def fused_sgd(module: nn.Module) -> Optimizer:
    decay = resnet50.WEIGHT_DECAY
    return SGD(module.parameters(), lr=resnet50.LR, momentum=resnet50.MOMENTUM, weight_decay=decay, fused=True)


def report_of(report: Report, values: dict[str, list[float]], unit: str, notes: dict[str, Any]) -> None:
    for name, found in values.items():
        report.arm(name, unit, found)
    for other, words, limit in (
        (PLAIN, "a tenth of the plain script's energy", 0.10),
        (LIGHTNING, "5% less than Lightning", 0.95),
    ):
        if other in values:
            name = f"energy as a share of: {other}"
            report.arm(name, "share", [one / two for one, two in zip(values[OURS], values[other], strict=True)])
            report.bar(f"at most {words}", name, limit, at_least=False)
    report.conditions = notes


def main() -> int:
    parser = options(__doc__, repeats=3)
    parser.add_argument("--model", choices=("gpt2", "resnet50"), default="gpt2")
    parser.add_argument(
        "--power-limit", type=int, action="append", default=[], metavar="WATTS", help="flatout with this limit, too"
    )
    given = parser.parse_args()
    device = gpu_or_leave(given.smoke)
    meter = device_energy(device)
    if meter.why_unavailable and not given.smoke:
        print(f"no meter of {device} can be read: {meter.why_unavailable}", file=sys.stderr)
        return 2
    measured = None if meter.why_unavailable else meter
    report = Report(f"energy_{given.model}", str(__doc__), device)
    with tempfile.TemporaryDirectory() as folder:
        asked = Asked(device, given.smoke, measured, {"meter": meter.name})
        arms = (
            gpt2_arms(Path(folder), given.power_limit, asked)
            if given.model == "gpt2"
            else resnet50_arms(given.power_limit, asked)
        )
        if _lightning.is_missing():
            print("Lightning is not installed: measured without it", file=sys.stderr)
            del arms[LIGHTNING]
        values = take_turns(arms, repeats(given), given.within)
    unit = ("s" if measured is None else "J") + ("/token" if given.model == "gpt2" else "/image")
    report_of(report, values, unit, asked.notes)
    return report.finish(given)


def repeats(given: argparse.Namespace) -> int:
    return 1 if given.quick or given.smoke else int(given.repeats)


if __name__ == "__main__":
    raise SystemExit(main())
