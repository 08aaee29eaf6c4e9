"""The optional libraries of the extra `export`, loaded when they are used, and their messages kept away from the user."""

from __future__ import annotations

import importlib
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from flatout.base.errors import MissingExtra

_CHATTY = ("torch.onnx", "torch.export", "torch._export", "onnxscript", "onnx_ir")


def library(name: str, need: str = "export to ONNX") -> Any:
    """A module of onnx, onnxscript or onnxruntime. `need` is what the user asked for."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise MissingExtra(name.partition(".")[0], "export", need) from error


@contextmanager
def quiet() -> Iterator[None]:
    """Without the warnings and log lines of the exporter; errors still raise."""
    loggers = [logging.getLogger(name) for name in _CHATTY]
    levels = [logger.level for logger in loggers]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for logger in loggers:
            logger.setLevel(logging.CRITICAL)
        try:
            yield
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)
