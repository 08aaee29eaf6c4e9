"""Datasets as people write them, well and badly, where worker processes can import them from."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset, IterableDataset, get_worker_info


class Squares(Dataset):
    """x is three numbers that follow from the sample's, y its class."""

    def __init__(self, length: int = 100) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, number: int) -> tuple[Any, Any]:
        return np.array([number, number**2, -number], dtype=np.float64), number % 3


class Noisy(Squares):
    """Draws from all three generators, as augmentation does."""

    def __getitem__(self, number: int) -> tuple[Any, Any]:
        return torch.tensor([random.random(), np.random.rand(), torch.rand(()).item()]), number


class Sometimes(Squares):
    """Draws for one sample in ten, and not for the first or the last."""

    def __getitem__(self, number: int) -> tuple[Any, Any]:
        x, y = super().__getitem__(number)
        return (x + random.random() if number % 10 == 4 else x), y


class Together(Squares):
    """Reads several at once; one at a time is not expected."""

    def __getitems__(self, numbers: list[int]) -> list[Any]:
        return [super(Together, self).__getitem__(number) for number in numbers]


class Broken(Squares):
    """Sample 17 raises, 33 has another shape, 71 is text."""

    def __init__(self, faults: tuple[int, ...], length: int = 100) -> None:
        super().__init__(length)
        self.faults = faults

    def __getitem__(self, number: int) -> tuple[Any, Any]:
        if number in self.faults:
            if number == 17:
                raise ValueError("the lamp is off")
            x: Any = np.zeros(4) if number == 33 else "words"
            return x, 0
        return super().__getitem__(number)


class Slow(Squares):
    """Sample 5 never comes."""

    def __getitem__(self, number: int) -> tuple[Any, Any]:
        if number == 5:
            time.sleep(1000)
        return super().__getitem__(number)


class Deadly(Squares):
    """Sample 23 ends the process that reads it, unless that is the one that trains."""

    def __init__(self, keep: int) -> None:
        super().__init__()
        self.keep = keep

    def __getitem__(self, number: int) -> tuple[Any, Any]:
        if number == 23 and os.getpid() != self.keep:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(number)


class Curious(Squares):
    """x tells who reads: the process, its torch threads, its place among the workers and their number."""

    def __getitem__(self, number: int) -> tuple[Any, Any]:
        time.sleep(0.02)
        info = get_worker_info()
        return torch.tensor([os.getpid(), torch.get_num_threads(), -1 if info is None else info.num_workers]), number


class Handle(Squares):
    """Opens its file at the first sample, and can't be pickled from then on."""

    def __init__(self, path: Path) -> None:
        super().__init__(10)
        self.path = path
        self.file: Any = None

    def __getitem__(self, number: int) -> tuple[Any, Any]:
        if self.file is None:
            self.file = self.path.open("rb")
        self.file.seek(number)
        return torch.tensor(self.file.read(1)[0]), number


class InMemory(Dataset):
    """Tensors and arrays that workers should not hold copies of."""

    def __init__(self, rows: int) -> None:
        self.x = torch.arange(rows * 4, dtype=torch.float32).view(rows, 4)
        self.half = torch.arange(rows, dtype=torch.bfloat16)
        self.y = np.arange(rows)

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, number: int) -> tuple[Any, ...]:
        return self.x[number], self.y[number], self.half[number]


class Count(IterableDataset):
    """0, 1, 2, ... up to `stop`; from a later start after `set_epoch`, so that passes can be told apart."""

    def __init__(self, stop: int | None = None, noise: bool = False) -> None:
        self.stop, self.noise, self.epoch = stop, noise, 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        number = 0
        while self.stop is None or number < self.stop:
            drawn = random.random() if self.noise else 0.0
            yield torch.tensor([1000.0 * self.epoch + number, drawn]), number
            number += 1


class Stateful(IterableDataset):
    """Counts how many samples it made, and goes on from a state."""

    def __init__(self, stop: int | None = None) -> None:
        self.stop, self.number, self.made = stop, 0, 0
        self.loaded = False

    def __iter__(self) -> Iterator[Any]:
        if not self.loaded:
            self.number = 0
        self.loaded = False
        while self.stop is None or self.number < self.stop:
            self.number += 1
            self.made += 1
            yield {"x": np.float32(self.number - 1), "made": self.made}

    def state_dict(self) -> dict[str, Any]:
        return {"number": self.number}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.number = state["number"]
        self.loaded = True


class Sharded(IterableDataset):
    """Gives each worker its part, as torch's documentation shows."""

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        place, of = (0, 1) if info is None else (info.id, info.num_workers)
        yield from (torch.tensor([number, of]) for number in range(place, 12, of))


class Tripping(IterableDataset):
    """Its fourth sample raises; the iterator could go on."""

    def __iter__(self) -> Iterator[Any]:
        return _TrippingIterator()


class _TrippingIterator:
    def __init__(self) -> None:
        self.number = -1

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        self.number += 1
        if self.number == 3:
            raise KeyError("tripped")
        if self.number == 8:
            raise StopIteration
        return torch.tensor(float(self.number))


def pad_to_five(samples: list[Any]) -> Any:
    ((x, y),) = samples
    return torch.nn.functional.pad(torch.as_tensor(x, dtype=torch.float32), (0, 5 - len(x)))[None], torch.tensor([y])
