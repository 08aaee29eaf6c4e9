"""Keras 3 models on its torch backend: modules of torch, but for two habits of their own.

They ask for `training=` where a module has a mode, so an adapter passes it on: without it dropout and batch statistics would be
those of prediction in training too. And their layers are named by counters of the process, so that the second model that a
function makes has other names than the first: here the counters begin anew for each model.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn
from torch.nn.parameter import is_lazy

_COUNTERS = "object_name_uids"


class KerasModel(nn.Module):
    """`keras` is the model itself; it is called with `training=` as this module's mode says."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.keras = model

    def forward(self, *given: Any, **named: Any) -> Any:
        return self.keras(*given, training=self.training, **named)


def adapted(model: nn.Module) -> nn.Module:
    """A Keras model in its adapter; any other as it is."""
    return KerasModel(model) if _is_keras(model) else model


@contextmanager
def names_from_the_start() -> Iterator[None]:
    """The names of Keras' layers within count from 0, as in a process that has made none; outside they go on as they were."""
    if "keras" not in sys.modules:  # whoever imports it within makes its first ones
        yield
        return
    from keras.src.backend.common import global_state  # type: ignore[import-not-found]

    before = global_state.get_global_attribute(_COUNTERS)
    global_state.set_global_attribute(_COUNTERS, defaultdict(int))
    try:
        yield
    finally:
        global_state.set_global_attribute(_COUNTERS, defaultdict(int) if before is None else before)


def waits_for_a_call(model: nn.Module) -> bool:
    """Whether a layer makes its weights when it is first called, and was not: of Keras, or nn.LazyLinear and its like."""
    lazy = any(is_lazy(one) for one in (*model.parameters(), *model.buffers()))
    return lazy or any(_is_keras(module) and not module.built for module in model.modules())


def _is_keras(model: object) -> bool:
    """By the name of its class, so that nobody has to import Keras."""
    return any(kind.__name__ == "Layer" and kind.__module__.partition(".")[0] == "keras" for kind in type(model).__mro__)
