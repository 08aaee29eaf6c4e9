"""Datasets of by_hand.py, in a module that worker processes can import."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

from flatout.data.workers.seeding import set_generators


class Digits(Dataset[Any]):
    """8x8 images and a label, as scikit-learn's digits."""

    def __init__(self, rows: int) -> None:
        self.x = np.random.default_rng(0).random((rows, 8, 8), dtype=np.float32)

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, number: int) -> Any:
        return self.x[number], number % 10


class Photos(Dataset[Any]):
    """Decoded photos: 3x224x224 bytes."""

    def __init__(self, rows: int) -> None:
        self.rows = rows
        self.x = torch.randint(0, 256, (64, 3, 224, 224), dtype=torch.uint8)

    def __len__(self) -> int:
        return self.rows

    def __getitem__(self, number: int) -> Any:
        return self.x[number % 64], number % 10


class TokenRows(Dataset[Any]):
    """Windows of 257 tokens, inputs and targets."""

    def __init__(self, rows: int) -> None:
        self.rows = rows
        self.tokens = np.random.default_rng(0).integers(0, 50_000, 200_000, dtype=np.uint16)

    def __len__(self) -> int:
        return self.rows

    def __getitem__(self, number: int) -> Any:
        begin = number * 7919 % (len(self.tokens) - 257)
        row = torch.from_numpy(self.tokens[begin : begin + 257].astype(np.int64))
        return row[:-1], row[1:]


class Mixed(Dataset[Any]):
    """Dicts of five columns of different types."""

    def __init__(self, rows: int) -> None:
        draw = np.random.default_rng(0)
        self.numbers = draw.random((rows, 13), dtype=np.float32)
        self.ids = draw.integers(0, 1000, (rows, 26)).astype(np.int32)

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, number: int) -> Any:
        return {
            "numbers": self.numbers[number],
            "ids": torch.from_numpy(self.ids[number]),
            "weight": number / len(self),
            "seen": np.bool_(number % 2),
            "y": number % 2,
        }


@dataclass
class Visit:
    pages: list[int]
    seconds: float
    bought: bool


class Visits(Dataset[Any]):
    """Python objects, made into tensors when asked for."""

    def __init__(self, rows: int) -> None:
        self.visits = [Visit([row % 7, row % 11, row % 13], row / 3, row % 5 == 0) for row in range(rows)]

    def __len__(self) -> int:
        return len(self.visits)

    def __getitem__(self, number: int) -> Any:
        visit = self.visits[number]
        return torch.tensor([*visit.pages, visit.seconds]), int(visit.bought)


class Noisy(Dataset[Any]):
    """Draws random numbers for each sample, as augmentation does."""

    def __init__(self, rows: int) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return self.rows

    def __getitem__(self, number: int) -> Any:
        return torch.rand(3, 32, 32), number


class Seeded(Dataset[Any]):
    """Any of these with random numbers that are a function of the sample alone: a DataLoader needs it to resume exactly."""

    def __init__(self, dataset: Dataset[Any]) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)  # type: ignore[arg-type]

    def __getitem__(self, number: int) -> Any:
        set_generators(0, 0, number)
        return self.dataset[number]


class Large(Dataset[Any]):
    """Holds one large array."""

    def __init__(self, size_bytes: int) -> None:
        self.x = np.ones((size_bytes // 4096, 1024), dtype=np.float32)

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, number: int) -> Any:
        return self.x[number], number
