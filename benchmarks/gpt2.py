"""GPT-2 124M at context 1024 trains at 540k tokens/s on an H200, as fast as a loop tuned by hand for it."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from _hand_written import fast_products
from evidence import Report, gpu_or_leave, options, take_turns
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.optim import AdamW

import flatout as fo
from flatout.base.events import Event
from flatout.measure.clock import synchronize
from flatout.models.gpt import gpt
from flatout.models.head import pad_vocabulary

OURS, BY_HAND, WHOLE_RUN = "flatout", "loop tuned by hand", "flatout, its first save included"
LR, WEIGHT_DECAY, CLIP, WARMUP_STEPS = 6e-4, 0.1, 1.0, 3
PADDING = 64  # 50,257 tokens are computed as 50,304


@dataclass(frozen=True)
class Size:
    layers: int = 12
    heads: int = 12
    width: int = 768
    vocabulary: int = 50257
    window: int = 1024
    batch: int = 64
    tokens: int = 8_000_000

    @property
    def model(self) -> dict[str, Any]:
        return {"gpt": {"layers": self.layers, "heads": self.heads, "width": self.width}}

    def network(self) -> nn.Module:
        made = gpt(self.vocabulary, self.window, **self.model["gpt"])
        pad_vocabulary(made, PADDING)
        return made


TINY = Size(layers=2, heads=2, width=32, vocabulary=300, window=32, batch=4, tokens=20_000)


def pins(device: torch.device) -> dict[str, Any]:
    """Whatever the planner would say: the figure is that of these settings."""
    if device.type == "cpu":
        return {"device": "cpu", "tier": "resident", "log_every": 4}
    pinned: dict[str, Any] = {"device": "cuda", "tier": "resident", "precision": "bf16", "compile": "on", "attention": "cudnn"}
    pinned |= {"loss_head": "fused", "vocabulary_padding": PADDING}
    return pinned | {"graph": False, "deterministic": False, "log_every": 8}


def recipe_of(size: Size, steps: int, tokens: Path, device: torch.device, **settings: Any) -> fo.Recipe:
    """`settings` beside the pins."""
    return fo.Recipe(
        data=fo.data.text(tokens, encoding="tokens", vocabulary=size.vocabulary, window=size.window, holdout=0.0),
        model=size.model,
        objective={"next_token": {"ignore": None}},
        batch=size.batch,
        lr=LR,
        weight_decay=WEIGHT_DECAY,
        optimizer={"adamw": {"betas": [0.9, 0.95]}},
        clip=CLIP,
        budget=f"{steps} steps",
        evaluate=None,
        settings={**pins(device), **settings},
    )


def flatout_arm(size: Size, steps: int, tokens: Path, device: torch.device, notes: dict[str, Any]) -> Callable[[], float]:
    """Tokens/s between the log points after the first save, which falls into a short run as it would not into a long one."""
    recipe = recipe_of(size, steps, tokens, device)
    notes["recipe"] = recipe.written() | {"data": "random tokens"}

    def measure() -> float:
        events: list[Event] = []
        with tempfile.TemporaryDirectory() as runs:
            result = fo.run(recipe, runs=runs, fresh=True, cache=tokens.parent / "cache", observers=[events.append]).result
        if device.type == "cuda":
            torch.cuda.empty_cache()
        notes.setdefault(WHOLE_RUN, []).append(result["tokens_per_s"])
        notes["ledger"] = {row: round(spent_s, 4) for row, spent_s in result["ledger"].items() if spent_s}
        notes["peak_memory_bytes"] = result["peak_memory_bytes"]
        return steady_rate(events) * size.window

    return measure


def steady_rate(events: list[Event]) -> float:
    """Samples/s from the first log point with no save running to the last one."""
    saved_s = next(event["t"] for event in events if event["kind"] == "checkpoint_saved")
    points = [event for event in events if event["kind"] == "step" and event["t"] > saved_s]
    if len(points) < 2:
        raise RuntimeError(f"the first save took until {saved_s:.1f} s into the run, past its last log points: more steps")
    return float((points[-1]["samples"] - points[0]["samples"]) / (points[-1]["elapsed_s"] - points[0]["elapsed_s"]))


class HandTuned:
    """The loss compiled as a whole, cuDNN's attention, fused AdamW, tokens on the device, nothing that waits for it."""

    def __init__(self, size: Size, tokens: Path, device: torch.device) -> None:
        torch.manual_seed(0)
        self._device, self._size = device, size
        self._model = size.network().to(device).train()
        matrices = [p for p in self._model.parameters() if p.ndim >= 2]
        vectors = [p for p in self._model.parameters() if p.ndim < 2]
        groups = [{"params": matrices, "weight_decay": WEIGHT_DECAY}, {"params": vectors, "weight_decay": 0.0}]
        self._optimizer = AdamW(groups, lr=LR, betas=(0.9, 0.95), fused=True)
        self._parameters = [*matrices, *vectors]
        self._tokens = torch.from_numpy(np.fromfile(tokens, dtype=np.uint16).astype(np.int32)).to(device)
        self._offsets = torch.arange(size.window + 1, device=device)
        self._on_gpu = device.type == "cuda"
        self._loss = torch.compile(self._loss_of, dynamic=False) if self._on_gpu else self._loss_of

    def tokens_per_s(self, steps: int) -> float:
        with fast_products():
            for _ in range(WARMUP_STEPS):
                self._step()
            synchronize(self._device)
            began_s = time.perf_counter()
            for _ in range(steps):
                self._step()
            synchronize(self._device)
            return steps * self._size.batch * self._size.window / (time.perf_counter() - began_s)

    def _step(self) -> None:
        starts = torch.randint(len(self._tokens) - self._size.window - 1, (self._size.batch, 1), device=self._device)
        windows = self._tokens[starts + self._offsets].long()
        self._optimizer.zero_grad(set_to_none=True)
        with (
            torch.autocast(self._device.type, dtype=torch.bfloat16, enabled=self._on_gpu),
            sdpa_kernel([SDPBackend.CUDNN_ATTENTION] if self._on_gpu else [SDPBackend.MATH]),
        ):
            loss = self._loss(windows[:, :-1], windows[:, 1:])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self._parameters, CLIP, foreach=True)
        self._optimizer.step()

    def _loss_of(self, x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(self._model(x).float().flatten(0, -2), y.flatten())


def main() -> int:
    began_s = time.perf_counter()
    asked = options(__doc__, repeats=4).parse_args()
    device = gpu_or_leave(asked.smoke)
    size = TINY if asked.smoke else Size()
    steps, repeats = (40, 2) if asked.smoke else (48, 2) if asked.quick else (64, asked.repeats)
    report = Report("gpt2", str(__doc__), device)
    notes: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        tokens = Path(folder) / "tokens.bin"
        np.random.default_rng(0).integers(0, size.vocabulary, size.tokens, dtype=np.uint16).tofile(tokens)
        by_hand = HandTuned(size, tokens, device)
        arms = {
            OURS: flatout_arm(size, steps, tokens, device, notes),
            BY_HAND: lambda: by_hand.tokens_per_s(steps // 2),
        }
        take_turns(arms, 1)  # compiling and autotuning
        notes[WHOLE_RUN].clear()
        for name, values in take_turns(arms, repeats, asked.within).items():
            report.arm(name, "tokens/s", values)
    report.arm(WHOLE_RUN, "tokens/s", notes.pop(WHOLE_RUN))
    report.conditions = {"steps": steps, **notes, "seconds": round(time.perf_counter() - began_s, 1)}
    report.bar("flatout, tokens/s", OURS, 540e3)
    report.ratio("flatout over the loop tuned by hand", OURS, BY_HAND, at_least=0.98)
    return report.finish(asked)


if __name__ == "__main__":
    raise SystemExit(main())
