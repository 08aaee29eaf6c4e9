"""In a DataLoader worker: how long reading takes, on which lines, and whether its random numbers differ from other workers'."""

from __future__ import annotations

import hashlib
import json
import os
import random
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data._utils import fetch, worker

from flatout.doctor.observing.sampler import StackSampler
from flatout.doctor.seen import Fetched

_TELLS_AT = (1, 4, 8, 16, 32)  # batches after which a worker reports; after the last, observation ends
_plain_worker_loop = worker._worker_loop
_folder: Path | None = None
loader_number = 0


def report_to(folder: Path) -> None:
    global _folder
    _folder = folder


def reports(folder: Path) -> list[Fetched]:
    found = []
    for path in sorted(folder.glob("worker-*.json")):
        try:
            found.append(Fetched(**json.loads(path.read_text())))
        except (ValueError, TypeError, OSError):  # the worker was killed while writing
            continue
    return found


def observed_worker_loop(*args: Any) -> None:
    """Replaces torch's worker loop. A spawned worker has no place to report to and runs torch's loop only."""
    if _folder is not None:
        dataset, collate, number = args[1], args[6], args[10]
        report = _Report(_folder, loader_number, number, dataset)
        for kind in (fetch._MapDatasetFetcher, fetch._IterableDatasetFetcher):
            setattr(kind, "fetch", report.observed(kind.fetch))  # noqa: B010
        args = (*args[:6], report.collated(collate), *args[7:])
    _plain_worker_loop(*args)


class _Report:
    def __init__(self, folder: Path, loader: int, number: int, dataset: Any) -> None:
        self._path = folder / f"worker-{loader}-{number}-{os.getpid()}.json"
        self._loader, self._number, self._dataset = loader, number, dataset
        self._batches, self._fetch_s, self._collate_s = 0, 0.0, 0.0
        self._sampler: StackSampler | None = None
        self._before: dict[str, str] = {}
        self._first = ""
        self._own = False

    def observed(self, original: Any) -> Any:
        def fetch_one(fetcher: Any, indices: Any) -> Any:
            if self._batches >= _TELLS_AT[-1]:
                return original(fetcher, indices)
            if not self._batches:
                self._before, self._own = _random_states(self._dataset)
                self._sampler = StackSampler(threading.get_ident(), 0.004)
                self._sampler.start()
            began_s = time.perf_counter()
            batch = original(fetcher, indices)
            self._fetch_s += time.perf_counter() - began_s
            self._batches += 1
            if self._batches == 1:
                self._first = _digest(batch)
            if self._batches in _TELLS_AT:
                self._tell()
            return batch

        return fetch_one

    def collated(self, collate: Any) -> Any:
        def together(rows: Any) -> Any:
            began_s = time.perf_counter()
            batch = collate(rows)
            self._collate_s += time.perf_counter() - began_s
            return batch

        return together

    def _tell(self) -> None:
        assert self._sampler is not None
        if self._batches == _TELLS_AT[-1]:
            self._sampler.stop()
        after, _ = _random_states(self._dataset)
        moved = {name for name, state in after.items() if state != self._before.get(name)}
        lines = Counter(sample.where for sample in list(self._sampler.samples) if sample.where)
        told = Fetched(
            self._loader,
            self._number,
            self._batches,
            self._fetch_s,
            self._collate_s,
            dict(lines.most_common(20)),
            "|".join(self._before[name] for name in sorted(moved) if name in self._before),
            own_generators=self._own,
            drew=bool(moved),
            first_batch=self._first,
        )
        part = self._path.with_suffix(".part")
        part.write_text(json.dumps(told.__dict__))
        part.replace(self._path)


def _random_states(dataset: Any) -> tuple[dict[str, str], bool]:
    """A digest of the global random generators and those stored in the dataset."""
    found = {"random": _short(repr(random.getstate())), "torch": _short(torch.get_rng_state().numpy().tobytes())}
    if "numpy" in sys.modules:
        found["numpy"] = _short(np.random.get_state()[1].tobytes() + repr(np.random.get_state()[2]).encode())  # type: ignore[index]
    own = False
    for holder, prefix in ((dataset, ""), *((value, f"{name}.") for name, value in _attributes(dataset))):
        for name, value in _attributes(holder):
            if (state := _state_of(value)) is not None:
                found[f"own {prefix}{name}"] = state
                own = True
    return found, own


def _attributes(holder: Any) -> list[tuple[str, Any]]:
    return list(vars(holder).items())[:50] if hasattr(holder, "__dict__") else []


def _state_of(value: Any) -> str | None:
    if isinstance(value, np.random.Generator):
        return _short(repr(value.bit_generator.state))
    if isinstance(value, np.random.RandomState):
        return _short(value.get_state()[1].tobytes() + repr(value.get_state()[2]).encode())  # type: ignore[index]
    if isinstance(value, random.Random):
        return _short(repr(value.getstate()))
    if isinstance(value, torch.Generator):
        return _short(value.get_state().numpy().tobytes())
    return None


def _digest(batch: Any) -> str:
    """A digest of all numbers in a batch."""
    whole = hashlib.blake2b(digest_size=12)

    def add(part: Any) -> None:
        if isinstance(part, Tensor):
            whole.update(part.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
        elif isinstance(part, dict):
            for inner in part.values():
                add(inner)
        elif isinstance(part, list | tuple):
            for inner in part:
                add(inner)
        else:
            whole.update(repr(part).encode())

    try:
        add(batch)
    except (RuntimeError, TypeError):  # a tensor without plain bytes
        return ""
    return whole.hexdigest()


def _short(state: bytes | str) -> str:
    return hashlib.blake2b(state.encode() if isinstance(state, str) else state, digest_size=8).hexdigest()
