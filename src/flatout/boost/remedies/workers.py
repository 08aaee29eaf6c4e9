"""DataLoader workers, which read data in advance.

Workers are restarted for each epoch, as is the default: persistent workers would keep the dataset and globals of the first
epoch, whatever the script changes later.
"""

from __future__ import annotations

import sys
from collections.abc import MutableMapping
from dataclasses import dataclass
from multiprocessing import get_start_method
from typing import Any
from weakref import WeakKeyDictionary

from torch.utils.data import DataLoader, IterableDataset
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

from flatout.boost.hooks import Hooks
from flatout.boost.patching import Edit, placed
from flatout.boost.remedies.dataset_state import dataset_state
from flatout.boost.remedies.remedy import Offer, Remedy, predicted
from flatout.doctor.diagnosis import Diagnosis
from flatout.doctor.findings.no_workers import usual_workers, workers_that_keep_up

_LATER = 3.0  # other remedies may make the rest of a step so many times as fast
_LOOKED_AT_EACH = 32  # batches


class WorkersRemedy(Remedy):
    name = "workers"
    computes_the_same = True
    values = "a number of workers"
    feeds = True

    def offers(self, diagnosis: Diagnosis) -> list[Offer]:
        case = diagnosis.case
        loader = case.training_loader
        if loader is None or loader.iterable or case.seen.cores < 2 or not loader.batched:
            return []
        if loader.fills:  # a worker's cache of samples ends with the worker
            return []
        gain = predicted(diagnosis, "no_workers", "slow_transform", "too_many_workers")
        count = max(usual_workers(case), workers_that_keep_up(case, loader, faster=_LATER))
        if gain is None or count == loader.workers:
            return []
        return [Offer(self.name, count, loader.workers, gain)]

    def takes(self, value: Any) -> bool:
        return type(value) is int and value > 0

    def apply(self, value: Any, hooks: Hooks) -> None:
        passes: WeakKeyDictionary[Any, _Pass] = WeakKeyDictionary()
        hooks.patches.wrap(DataLoader, "__init__", lambda original: _with_workers(original, int(value)))
        hooks.patches.wrap(DataLoader, "__iter__", lambda original: _noting(original, passes))
        hooks.patches.wrap(_MultiProcessingDataLoaderIter, "__next__", lambda original: _looking(original, passes))

    def edits(self, value: Any, diagnosis: Diagnosis) -> list[Edit]:
        loader = diagnosis.case.training_loader
        at = placed(loader.made) if loader is not None else None
        if at is None:
            return []
        return [Edit(*at, function="DataLoader", arguments=(("num_workers", str(value)),))]


def _with_workers(original: Any, count: int) -> Any:
    def __init__(loader: DataLoader[Any], dataset: Any, *args: Any, **named: Any) -> None:
        # only loaders of batches; positional arguments of the script are not changed
        if not isinstance(dataset, IterableDataset) and len(args) < 5:
            named = {**_started(), **named, "num_workers": count}
        original(loader, dataset, *args, **named)

    return __init__


@dataclass
class _Pass:
    dataset: Any
    state: Any
    batches: int = 0


def _noting(original: Any, passes: MutableMapping[Any, _Pass]) -> Any:
    def __iter__(loader: DataLoader[Any]) -> Any:
        iterator = original(loader)
        if isinstance(iterator, _MultiProcessingDataLoaderIter):
            passes[iterator] = _Pass(loader.dataset, dataset_state(loader.dataset))
        return iterator

    return __iter__


def _looking(original: Any, passes: MutableMapping[Any, _Pass]) -> Any:
    """Detects a script that changes its dataset during an epoch, which workers would not see."""

    def __next__(iterator: Any) -> Any:
        known = passes.get(iterator)
        if known is not None:
            known.batches += 1
            if known.batches % _LOOKED_AT_EACH == 0 and dataset_state(known.dataset) != known.state:
                raise RuntimeError(
                    f"the script changed the dataset {type(known.dataset).__name__} during an epoch, but workers have their "
                    "own copies of it: this script can't use workers"
                )
        return original(iterator)

    return __next__


def _started() -> dict[str, Any]:
    """Start workers by fork unless the script has set another method. The default of newer Pythons takes seconds per epoch."""
    return {"multiprocessing_context": "fork"} if sys.platform == "linux" and get_start_method(allow_none=True) is None else {}
