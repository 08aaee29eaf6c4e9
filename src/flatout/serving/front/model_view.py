"""One served model as requests see it: raw inputs, prepared inputs, named outputs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from flatout.data.fitted import RawInput
from flatout.data.fitted.photo_rows import PhotoHost
from flatout.serving.asking import Array, ServedModel
from flatout.serving.front.batch_headers import LastBatch
from flatout.serving.front.datatypes import NUMPY_TYPES, bfloat16_numbers, bytes_packed, datatype_of
from flatout.serving.front.prepared_checks import BytesCheck, TensorCheck, row_checks, tensor_checks
from flatout.serving.front.preparing import Preparer

CLASS = "class"
_TYPES_OF_KINDS = {"number": "FP64", "category": "BYTES", "date": "BYTES", "photo": "BYTES", "text": "BYTES"}


@dataclass(frozen=True)
class TensorSpec:
    """`shape` is that of one row; None is any size."""

    name: str
    datatype: str
    shape: tuple[int | None, ...]
    dtype: np.dtype[Any] | None  # None: BYTES

    def metadata(self) -> dict[str, Any]:
        shape = [-1, *(-1 if size is None else size for size in self.shape)]
        return {"name": self.name, "datatype": self.datatype, "shape": shape}

    def fits(self, shape: tuple[int, ...]) -> bool:
        """Whether rows of this shape are rows of this tensor."""
        return len(shape) == len(self.shape) and all(
            wanted is None or wanted == size for wanted, size in zip(self.shape, shape, strict=True)
        )


class ModelView:
    def __init__(self, model: ServedModel) -> None:
        self.model, self.name, self.version = model, model.name, model.version
        fitted = model.package.fitted
        self.kind = fitted.host.kind
        self.cover = fitted.host.cover if isinstance(fitted.host, PhotoHost) else 0  # see photo_files.head_of
        self.raw: tuple[RawInput, ...] = fitted.host.inputs
        self.raw_specs = {raw.name: _raw_spec(raw) for raw in self.raw}
        self.prepared = {port.name: _spec(port.name, port.dtype, port.shape[1:]) for port in model.inputs}
        self.has_open_sizes = any(None in spec.shape for spec in self.prepared.values())
        self.coincide = self.kind == "arrays" and self.raw_specs == self.prepared
        self.checks: dict[str, TensorCheck] = tensor_checks(fitted)
        quick = {name: check for name, check in row_checks(fitted).items() if self.prepared[name].datatype == "INT32"}
        self.row_checks: dict[str, BytesCheck] = quick
        self._outputs = {port.name: _spec(port.name, port.dtype, port.shape[1:]) for port in model.outputs}
        names = fitted.host.class_names
        named = names is not None and "prediction" in self._outputs
        self.classes: tuple[str, ...] | None = None
        self.packed_classes: tuple[bytes, ...] = ()
        if named and names is not None and str(model.package.card["objective"]) in ("classify", "binary"):
            self.classes = (*names, "")  # the last one is for a model with more outputs than classes
            self.packed_classes = tuple(bytes_packed([name.encode()]) for name in self.classes)
            rest = {name: spec for name, spec in self._outputs.items() if name != "prediction"}
            self.outputs = {"prediction": self._outputs["prediction"], CLASS: TensorSpec(CLASS, "BYTES", (), None), **rest}
        else:
            self.outputs = dict(self._outputs)
        self.half = frozenset(name for name, spec in self.outputs.items() if spec.datatype == "BF16")
        self.preparer = Preparer(model)
        self.last_batch = LastBatch(model.version)

    def class_numbers(self, outputs: Mapping[str, Array]) -> list[int]:
        assert self.classes is not None
        most = len(self.classes) - 1
        return [min(number, most) for number in outputs["prediction"].tolist()]

    def columns(self, outputs: Mapping[str, Array]) -> dict[str, Any]:
        """Arrays of numbers, and the names of the classes as a list. Copies: the room may be released."""
        found: dict[str, Any] = {}
        for name in self.outputs:
            if name == CLASS and self.classes is not None:
                found[CLASS] = [self.classes[number] for number in self.class_numbers(outputs)]
            else:
                found[name] = bfloat16_numbers(outputs[name]) if name in self.half else np.array(outputs[name])
        return found


def _spec(name: str, torch_type: str, shape: tuple[int | None, ...]) -> TensorSpec:
    datatype = datatype_of(torch_type)
    return TensorSpec(name, datatype, shape, NUMPY_TYPES[datatype])


def _raw_spec(raw: RawInput) -> TensorSpec:
    if raw.kind in _TYPES_OF_KINDS:
        datatype = _TYPES_OF_KINDS[raw.kind]
        return TensorSpec(raw.name, datatype, (), NUMPY_TYPES.get(datatype))
    return _spec(raw.name, raw.dtype or "float32", raw.shape)
