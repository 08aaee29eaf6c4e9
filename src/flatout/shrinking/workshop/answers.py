"""The costs of a model's answers, row by row, from its outputs and the labels."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from flatout.base.errors import ModelError
from flatout.data.source import Batch
from flatout.packaging.onnx_libraries import library
from flatout.shrinking.metric import LOSS, SCORE, SQUARED, TRUTH, WRONG, Costs

if TYPE_CHECKING:
    import onnx

LOG_PROBABILITIES = "flatout/log_probabilities"
Run = Callable[[Batch], Mapping[str, Tensor]]


def costs_of(objective: str, run: Run, rows: Batch, size: int) -> Costs:
    """In batches of `size`, as they are served."""
    names = [name for name in rows if name != "y"]
    pieces: dict[str, list[Tensor]] = {}
    for start in range(0, len(rows["y"]), size):
        part = slice(start, start + size)
        made = run({name: rows[name][part] for name in names})
        where = next(iter(made.values())).device  # the probabilities of all tokens are too many to copy from a GPU
        for name, column in _OF[objective](made, rows["y"][part].to(where)).items():
            pieces.setdefault(name, []).append(column.double().cpu())
    return {name: torch.cat(some).numpy().astype(np.float64) for name, some in pieces.items()}


def in_batches(run: Run, rows: Batch, size: int) -> dict[str, Tensor]:
    pieces: dict[str, list[Tensor]] = {}
    for start in range(0, len(next(iter(rows.values()))), size):
        for name, column in run({key: one[start : start + size] for key, one in rows.items()}).items():
            pieces.setdefault(name, []).append(column.cpu().clone())
    return {name: torch.cat(some) for name, some in pieces.items()}


def _classes(made: Mapping[str, Tensor], y: Tensor) -> dict[str, Tensor]:
    return {WRONG: _mean_of_rows((made["prediction"] != y.reshape(made["prediction"].shape)).double())}


def _yes_no(made: Mapping[str, Tensor], y: Tensor) -> dict[str, Tensor]:
    truth = y.reshape(-1) != 0
    return {WRONG: (made["prediction"].reshape(-1) != truth.long()).double(), SCORE: made["probabilities"][:, 1],
            TRUTH: truth.double()}  # fmt: skip


def _labels(made: Mapping[str, Tensor], y: Tensor) -> dict[str, Tensor]:
    return {WRONG: _mean_of_rows((made["prediction"].bool() != y.bool()).double())}


def _numbers(made: Mapping[str, Tensor], y: Tensor) -> dict[str, Tensor]:
    return {SQUARED: _mean_of_rows((made["prediction"].double() - y.double().reshape(made["prediction"].shape)).square())}


def _tokens(made: Mapping[str, Tensor], y: Tensor) -> dict[str, Tensor]:
    """The mean loss of a window: its tokens depend on each other, windows do not."""
    logs, counts = made[LOG_PROBABILITIES], y >= 0
    of_target = logs.gather(-1, y.long().clamp(min=0).unsqueeze(-1)).squeeze(-1).double()
    return {LOSS: -(of_target * counts).sum(1) / counts.sum(1).clamp(min=1)}


_OF = {"classify": _classes, "binary": _yes_no, "multilabel": _labels, "regress": _numbers, "next_token": _tokens}


def _mean_of_rows(values: Tensor) -> Tensor:
    return values.reshape(len(values), -1).mean(1)


def with_log_probabilities(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy that also gives those of every token: the outputs of a package have only that of the most likely one."""
    onnx = library("onnx")
    made: Any = onnx.ModelProto()
    made.CopyFrom(model)
    by = {output: node for node in made.graph.node for output in node.output}
    name = "log_probability"
    while name in by and by[name].op_type != "LogSoftmax":
        name = by[name].input[0]
    if name not in by:
        raise ModelError("the model's ONNX file has no LogSoftmax from which losses can be computed")
    made.graph.node.append(onnx.helper.make_node("Identity", [name], [LOG_PROBABILITIES]))
    made.graph.output.append(onnx.helper.make_tensor_value_info(LOG_PROBABILITIES, onnx.TensorProto.FLOAT, None))
    return made  # type: ignore[no-any-return]
