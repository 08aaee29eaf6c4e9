"""Matrix products in int8, with the range of their input measured anew in every call: no calibration, and accurate."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from flatout.packaging.onnx_libraries import library
from flatout.shrinking.changes.change import ChangedModel, Material, ModelChange
from flatout.shrinking.changes.layers import PRODUCTS, names_of, with_product_names
from flatout.shrinking.changes.quiet import without_advice

if TYPE_CHECKING:
    import onnx


class Int8Dynamic(ModelChange):
    """One range for all rows of a call: a row's answer depends a little on the other rows of its batch."""

    name: ClassVar[str] = "int8_dynamic"
    is_by_layer: ClassVar[bool] = True

    def why_not(self, model: onnx.ModelProto, value: str) -> str | None:
        return None if self.layers(model) else "the model has no matrix product with constant weights"

    def layers(self, model: onnx.ModelProto) -> list[str]:
        return names_of(model, PRODUCTS)

    def make(self, material: Material, value: str, floats: Sequence[str]) -> ChangedModel:
        quantization = library("onnxruntime.quantization")
        with tempfile.TemporaryDirectory() as folder, without_advice():
            out = Path(folder) / "made.onnx"
            quantization.quantize_dynamic(
                material.model, out, op_types_to_quantize=list(PRODUCTS), per_channel=True,
                weight_type=quantization.QuantType.QInt8, nodes_to_exclude=with_product_names(floats),
            )  # fmt: skip
            return ChangedModel(library("onnx").load(out))
