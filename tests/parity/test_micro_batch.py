"""A batch that is split into micro-batches gives the same gradient: the loss is a mean over the whole batch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from test_engine_kit import Net, net, train, weights
from torch import Tensor, nn

import flatout as fo


class Double(Net):
    def __init__(self) -> None:
        super().__init__()
        self.double()

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.double())


def double() -> nn.Module:
    return Double()


class Reader(nn.Module):
    """Tokens in, logits out, in float64."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(11, 7)
        self.head = nn.Linear(7, 11)
        self.double()

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.table(x)))


def reader() -> nn.Module:
    return Reader()


def ignoring(model: nn.Module, batch: Any) -> tuple[Tensor, Tensor]:
    """Token-weighted, with a number of counted tokens that differs from row to row: only the data knows the weight."""
    target = batch["y"].masked_fill(batch["x"] < 4, -100)
    loss = nn.functional.cross_entropy(model(batch["x"]).flatten(0, -2), target.flatten(), reduction="sum", ignore_index=-100)
    return loss, (target != -100).sum()


def tokens(tmp_path: Path) -> Any:
    numbers = torch.randint(0, 11, (900,), generator=torch.Generator().manual_seed(3))
    path = tmp_path / "tokens.bin"
    path.write_bytes(numbers.to(torch.uint8).numpy().tobytes())
    return fo.data.text(path, encoding="tokens", dtype="uint8", window=8, vocabulary=11)


def difference(a: dict[str, Tensor], b: dict[str, Tensor]) -> float:
    return max(float((a[name] - b[name]).abs().max()) for name in a)


@pytest.mark.parametrize("micro", [1, 5, 8, 16])
@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_equal_in_float64(tmp_path: Path, micro: int, optimizer: str) -> None:
    given: dict[str, Any] = {"model": double, "optimizer": optimizer, "budget": "100 samples", "clip": 1.0}
    whole = train(tmp_path, **given)
    parts = train(tmp_path, **given, settings={"micro_batch": micro})
    assert parts.result["micro_batch"] == micro
    assert difference(weights(whole), weights(parts)) < 1e-12
    assert parts.result["metrics"]["train_loss"] == pytest.approx(whole.result["metrics"]["train_loss"], abs=1e-12)


def test_equal_in_float32(tmp_path: Path) -> None:
    whole = train(tmp_path, model=net, optimizer="sgd")
    parts = train(tmp_path, model=net, optimizer="sgd", settings={"micro_batch": 3})
    assert difference(weights(whole), weights(parts)) < 1e-6


@pytest.mark.parametrize("objective", ["next_token", ignoring], ids=["all tokens", "some tokens ignored"])
def test_equal_when_tokens_are_counted(tmp_path: Path, objective: Any) -> None:
    given: dict[str, Any] = {"data": tokens(tmp_path), "model": reader, "objective": objective, "optimizer": "sgd", "lr": 0.1}
    whole = train(tmp_path, **given)
    parts = train(tmp_path, **given, settings={"micro_batch": 5})
    assert difference(weights(whole), weights(parts)) < 1e-12
    assert parts.result["metrics"]["train_loss"] == pytest.approx(whole.result["metrics"]["train_loss"], abs=1e-12)
