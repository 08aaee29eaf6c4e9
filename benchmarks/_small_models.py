"""Six small models with data of their size, as recipes and as modules: what plan_cpu compares."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import flatout as fo
from flatout.data import Data
from flatout.models.gpt import gpt


@dataclass(frozen=True)
class Small:
    batch: int
    rows: int
    steps: int  # of one measurement
    network: Callable[[], nn.Module]
    columns: Callable[[int], tuple[Tensor, Tensor]]
    loss: Callable[[Tensor, Tensor], Tensor] = F.cross_entropy
    objective: str = "classify"


class Residual(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x + self.body(x))


class Reader(nn.Module):
    """A transformer encoder with dropout over words, and the mean of what it says."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(500, 64)
        layer = nn.TransformerEncoderLayer(64, 4, 128, dropout=0.1, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(64, 4)

    def forward(self, x: Tensor) -> Tensor:
        told: Tensor = self.head(self.layers(self.words(x)).mean(1))
        return told


def mlp(*widths: int) -> nn.Module:
    layers: list[nn.Module] = []
    for inner, outer in pairwise(widths):
        layers += [nn.Linear(inner, outer), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def convnet() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 3), nn.ReLU(), nn.Conv2d(16, 32, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(4608, 10)
    )


def resnet() -> nn.Module:
    stem = [nn.Conv2d(3, 32, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(32), nn.ReLU()]
    return nn.Sequential(*stem, Residual(32), Residual(32), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10))


def language() -> nn.Module:
    return gpt(128, 64, layers=4, heads=4, width=128)


def floats(*shape: int, classes: int = 10) -> Callable[[int], tuple[Tensor, Tensor]]:
    def made(rows: int) -> tuple[Tensor, Tensor]:
        draw = torch.Generator().manual_seed(0)
        return torch.randn(rows, *shape, generator=draw), torch.randint(0, classes, (rows,), generator=draw)

    return made


def tokens(length: int, vocabulary: int, classes: int | None) -> Callable[[int], tuple[Tensor, Tensor]]:
    """Labels are classes, or the tokens themselves one further on."""

    def made(rows: int) -> tuple[Tensor, Tensor]:
        draw = torch.Generator().manual_seed(0)
        x = torch.randint(0, vocabulary, (rows, length), generator=draw)
        return x, x.roll(-1, 1) if classes is None else torch.randint(0, classes, (rows,), generator=draw)

    return made


def over_tokens(logits: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1), y.flatten())


def written(x: Tensor, vocabulary: int) -> Data:
    """Rows of tokens as a file of them."""
    path = Path(tempfile.gettempdir()) / f"flatout-tokens-{vocabulary}-{x.numel()}.bin"
    if not path.exists():
        x.numpy().astype(np.uint16).tofile(path)
    return fo.data.text(path, encoding="tokens", vocabulary=vocabulary, window=x.shape[1], holdout=0.0)


SMALL = {
    "tiny MLP": Small(128, 50_000, 3000, lambda: mlp(64, 64, 10), floats(64)),
    "tabular MLP": Small(1024, 100_000, 200, lambda: mlp(39, 512, 256, 2), floats(39, classes=2)),
    "convnet, 28 px": Small(64, 8192, 100, convnet, floats(1, 28, 28)),
    "residual net, 32 px": Small(64, 8192, 100, resnet, floats(3, 32, 32)),
    "GPT, 64 tokens": Small(16, 4096, 60, language, tokens(64, 128, None), over_tokens, "next_token"),
    "encoder with dropout, 32 words": Small(64, 8192, 60, Reader, tokens(32, 500, 4)),
}


def recipe(name: str) -> fo.Recipe:
    """Long enough for trials to pay."""
    small = SMALL[name]
    x, y = small.columns(small.rows)
    torch.manual_seed(0)
    return fo.Recipe(
        data=written(x, vocabulary=128) if small.objective == "next_token" else fo.data.arrays(x, y),
        model=small.network,
        objective=small.objective,
        batch=small.batch,
        lr=1e-3,
        budget=f"{400 * small.steps} steps",
        evaluate=None,
        name="small",
    )
