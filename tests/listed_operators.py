"""torch lists the operators that it can write as ONNX anew for each file, which takes a second: here once for many tests."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import pytest


@contextmanager
def listed_once() -> Iterator[None]:
    from torch.onnx._internal.exporter import _registration

    listed = cache(_registration.ONNXRegistry.from_torchlib)

    def copied(*given: Any, **named: Any) -> Any:
        made = copy.copy(listed(*given, **named))
        made.functions = {name: list(some) for name, some in made.functions.items()}
        return made

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_registration.ONNXRegistry, "from_torchlib", staticmethod(copied))
        yield
