"""Keras 3 models on the torch backend: torch modules with two differences.

They take `training=` instead of a module mode, so an adapter passes the mode on: otherwise dropout and batch statistics would
be in prediction mode during training. And layer names use process-wide counters, so the second model built by a function would
have different names than the first: here the counters restart for each model.
"""

from __future__ import annotations

import copy
import sys
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn
from torch.nn.parameter import is_lazy

from flatout.base.errors import ModelError

_COUNTERS = "object_name_uids"


class KerasModel(nn.Module):
    """`keras` is the model; it is called with `training=` set to this module's mode."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.keras = model

    def forward(self, *given: Any, **named: Any) -> Any:
        return self.keras(*given, training=self.training, **named)


def adapted(model: nn.Module) -> nn.Module:
    """Wrap a Keras model in its adapter; return any other model unchanged."""
    return KerasModel(model) if is_keras(model) else model


def check_backend(model: object) -> None:
    """A Keras model on another backend is no module of torch."""
    if is_keras(model) and not isinstance(model, nn.Module):
        backend = sys.modules["keras"].config.backend()
        raise ModelError(
            f"this Keras model runs on {backend}, and only those on torch can be trained here: set KERAS_BACKEND=torch in the "
            "environment (or os.environ) before keras is imported"
        )


def copied(model: nn.Module) -> nn.Module:
    """A copy. What Keras `compile` was given stays behind: it is not used here, and its optimizer can't be copied."""
    if not (is_keras(model) and vars(model).get("compiled")):
        return copy.deepcopy(model)
    own: Any = model
    own.compiled = False
    try:
        return copy.deepcopy(model)
    finally:
        own.compiled = True


@contextmanager
def names_from_the_start() -> Iterator[None]:
    """Keras layer names inside count from 0, as in a new process; outside they continue as before."""
    if "keras" not in sys.modules:  # names start at 0 if it is imported inside
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
    """Whether some weights are created at the first call, which has not happened: Keras layers, nn.LazyLinear and similar."""
    lazy = any(is_lazy(one) for one in (*model.parameters(), *model.buffers()))
    return lazy or any(is_keras(module) and not module.built for module in model.modules())


def is_keras(model: object) -> bool:
    """Checked by class name, without importing Keras."""
    return any(kind.__name__ == "Layer" and kind.__module__.partition(".")[0] == "keras" for kind in type(model).__mro__)
