"""bfloat16: not on onnxruntime's CPU kernels so far. A product is tried, so that a version that has one is noticed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from flatout.base.errors import NotExportable
from flatout.packaging.onnx_libraries import library
from flatout.shrinking.changes.change import ChangedModel, Material, ModelChange

if TYPE_CHECKING:
    import onnx


class Bfloat16(ModelChange):
    name: ClassVar[str] = "bfloat16"

    def why_not(self, model: onnx.ModelProto, value: str) -> str | None:
        try:
            library("onnxruntime").InferenceSession(_product().SerializeToString(), providers=["CPUExecutionProvider"])
        except Exception:  # onnxruntime has errors of its own
            return "onnxruntime has no kernel for bfloat16 products on this CPU"
        return "onnxruntime has a kernel for bfloat16 products here, which shrink does not use yet"

    def make(self, material: Material, value: str, floats: Sequence[str]) -> ChangedModel:
        raise NotExportable("bfloat16 models are not made yet")


def _product() -> onnx.ModelProto:
    onnx = library("onnx")
    kind, helper = onnx.TensorProto.BFLOAT16, onnx.helper
    a, b, c = (helper.make_tensor_value_info(name, kind, [2, 2]) for name in "abc")
    graph = helper.make_graph([helper.make_node("MatMul", ["a", "b"], ["c"])], "product", [a, b], [c])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)  # type: ignore[no-any-return]
