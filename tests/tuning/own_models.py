"""Models that only their tests know."""

from __future__ import annotations

import os
import time
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional


class Normed(nn.Module):
    """With batch norm, whose buffers change in training."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.head = nn.Conv2d(1, 4, 3, bias=False), nn.BatchNorm2d(4), nn.Linear(4, 10)

    def forward(self, x: Tensor) -> Tensor:
        pooled = self.norm(self.conv(x.view(-1, 1, 8, 8))).relu().mean((2, 3))
        logits: Tensor = self.head(pooled)
        return logits


class Convolved(nn.Module):
    """Convolutions of all kinds; the last one has groups, and stays one."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, 4, (3, 5), stride=(1, 2), padding=(2, 1)), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(4, 6, 2, padding="same", bias=False), nn.ReLU(),
            nn.Conv2d(6, 4, 3, padding=2, dilation=(1, 2)), nn.ReLU(), nn.Conv2d(4, 4, 1, padding="valid", groups=2),
        )  # fmt: skip
        self.head = nn.Linear(4, 10)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.body(x.view(-1, 1, 8, 8)).mean((2, 3)))
        return logits


class RandomFeatures(nn.Module):
    """A fixed random layer: a buffer and a frozen parameter, which the seed decides."""

    directions: Tensor
    unsaved: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("directions", torch.randn(64, 16) / 8)
        self.register_buffer("unsaved", torch.randn(16), persistent=False)
        self.fixed = nn.Parameter(torch.rand(16), requires_grad=False)
        self.head = nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(torch.relu(x.flatten(1) @ self.directions + self.unsaved) * self.fixed)
        return logits


class ByValue(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(x.flatten(1))
        return logits * 2 if logits.sum() > 0 else logits


class Noisy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1)
        logits: Tensor = self.head(x + 0.1 * torch.rand(x.shape) if self.training else x)
        return logits


class DropsInForward(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(functional.dropout(x.flatten(1), 0.2, self.training))
        return logits


class Troubled(nn.Module):
    """Does something bad if it has that width."""

    def __init__(self, width: int, trouble: str) -> None:
        super().__init__()
        self.width, self.trouble = width, trouble
        self.wide, self.head = nn.Linear(64, width), nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        if self.width in (13, 14):
            self._trouble()
        logits: Tensor = self.head(self.wide(x.flatten(1)).relu())
        return logits

    def _trouble(self) -> None:
        if self.trouble == "ends" and self.width == 13:
            os._exit(3)
        if self.trouble == "ends":
            time.sleep(1000)
        if self.trouble == "memory":
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 80 GiB")
        if self.trouble == "raises":
            raise ValueError("13 brings bad luck")


def troubled(width: int = 8, trouble: str = "raises") -> nn.Module:
    return Troubled(width, trouble)


def normed() -> nn.Module:
    return Normed()


def squared(model: nn.Module, batch: dict[str, Any]) -> tuple[Tensor, int]:
    """A loss of one's own."""
    wanted = functional.one_hot(batch["y"].long(), 10)
    loss: Tensor = ((model(batch["x"]).softmax(1) - wanted) ** 2).sum()
    return loss, len(wanted)
