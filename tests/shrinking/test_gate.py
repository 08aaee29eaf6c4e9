"""Changes of real models: what they write, and what they do without."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from gating import judged

from flatout.base.answering_child import NoAnswer
from flatout.packaging.package import Package
from flatout.packaging.runtimes.onnxruntime_runtime import OnnxRuntime
from flatout.shrinking.changes import int8_static
from flatout.shrinking.changes.change import ChangedModel, Material
from flatout.shrinking.changes.int8_dynamic import Int8Dynamic
from flatout.shrinking.step import ShrinkStep
from flatout.shrinking.workshop import material, profile
from flatout.shrinking.workshop.bench import BASE
from flatout.shrinking.workshop.workshop import Workshop

STATIC = {"change": "int8_static", "value": "", "floats": []}


def made(workshop: Workshop, step: dict[str, Any] = STATIC, name: str = "candidate") -> dict[str, Any]:
    return workshop.ask({"ask": "make", "steps": [step], "name": name}, 100.0)


@pytest.mark.parametrize(("value", "share"), [("int8", 0.6), ("int4", 0.5)])
def test_weights_alone_are_smaller_and_pass(workshop: Workshop, value: str, share: float) -> None:
    before = workshop.ask({"ask": "start", "batch": 1}, 100.0)["bytes"]
    found = judged(workshop, ShrinkStep("weights", value))
    assert found.judgement.kept and found.result.bytes < share * before


def test_layers_that_stay_float_are_not_quantised(workshop: Workshop) -> None:
    layers = workshop.ask({"ask": "start", "batch": 1}, 100.0)["changes"]["int8_static"][""]["layers"]
    assert len(layers) == 4
    made(workshop, {**STATIC, "floats": layers[:2]})
    weights = [one for one in onnx.load(workshop.folder / "candidate.onnx").graph.initializer if len(one.dims) >= 2]
    kinds = sorted(one.data_type for one in weights)
    assert kinds == [onnx.TensorProto.FLOAT] * 2 + [onnx.TensorProto.INT8] * 2


def test_calibration_rows_without_a_finite_value_leave_their_layer_in_float() -> None:
    with pytest.raises(Exception, match="no layer saw a finite value"):
        _static_on(np.full((64, 4), np.nan, np.float32))
    mixed = np.random.default_rng(0).normal(size=(64, 4)).astype(np.float32)
    mixed[:32, 1] = np.nan
    notes = _static_on(mixed)
    assert notes["values_not_finite"] > 0 and notes["rows"] == 64


def _static_on(x: np.ndarray[Any, Any]) -> dict[str, Any]:
    helper, kind = onnx.helper, onnx.TensorProto.FLOAT
    weight = onnx.numpy_helper.from_array(np.eye(4, dtype=np.float32), "weight")
    values = [helper.make_tensor_value_info(name, kind, ["rows", 4]) for name in ("x", "prediction")]
    nodes = [helper.make_node("MatMul", ["x", "weight"], ["prediction"], name="layer")]
    graph = helper.make_graph(nodes, "model", values[:1], values[1:], [weight])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    path = Path("one_layer.onnx")
    onnx.save(model, path)
    table = {"x": torch.from_numpy(x)}
    ready = material.PackageMaterial(path, Path(), table, {"x": torch.zeros(64, 4)})
    return int8_static.Int8Static().make(ready, "", []).notes


def test_an_operator_without_a_kernel_is_a_failed_trial(workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    """A product in bfloat16, for which onnxruntime has no kernel on a CPU: it says so when the file is read."""
    kind, helper = onnx.TensorProto, onnx.helper

    def in_bfloat16(self: Int8Dynamic, ready: Material, value: str, floats: object) -> ChangedModel:
        model = ready.model
        layer = next(node for node in model.graph.node if node.op_type in ("Gemm", "MatMul"))
        inputs, output = list(layer.input), layer.output[0]
        for place, name in enumerate(inputs):
            layer.input[place] = f"{name}/bfloat16"
        layer.output[0] = f"{output}/bfloat16"
        at = list(model.graph.node).index(layer)
        casts = [helper.make_node("Cast", [name], [f"{name}/bfloat16"], to=kind.BFLOAT16) for name in inputs]
        model.graph.node.insert(at + 1, helper.make_node("Cast", [f"{output}/bfloat16"], [output], to=kind.FLOAT))
        for cast in casts:
            model.graph.node.insert(at, cast)
        return ChangedModel(model)

    monkeypatch.setattr(Int8Dynamic, "make", in_bfloat16)
    with pytest.raises(NoAnswer, match=r"implementation for (Gemm|MatMul)|NOT_IMPLEMENTED"):
        made(workshop, {**STATIC, "change": "int8_dynamic"})


def test_layers_without_an_int8_kernel_stay_in_float() -> None:
    """A transposed convolution is left as it is, and the product beside it is quantised."""
    helper, kind, draw = onnx.helper, onnx.TensorProto, np.random.default_rng(0)
    turned, weight = (
        onnx.numpy_helper.from_array(draw.normal(size=size).astype(np.float32), name)
        for size, name in (((2, 3, 2, 2), "turned"), ((8, 4), "weight"))
    )
    nodes = [
        helper.make_node("ConvTranspose", ["x", "turned"], ["wide"], name="without", strides=[2, 2]),
        helper.make_node("MatMul", ["wide", "weight"], ["prediction"], name="layer"),
    ]
    ends = [helper.make_tensor_value_info(name, kind.FLOAT, ["rows", *size])
            for name, size in (("x", [2, 4, 4]), ("prediction", [3, 8, 4]))]  # fmt: skip
    model = helper.make_model(
        helper.make_graph(nodes, "model", ends[:1], ends[1:], [turned, weight]), opset_imports=[helper.make_opsetid("", 20)],
        ir_version=10,
    )  # fmt: skip
    onnx.save(model, "mixed.onnx")
    x = torch.from_numpy(draw.normal(size=(64, 2, 4, 4)).astype(np.float32))
    ready = material.PackageMaterial(Path("mixed.onnx"), Path(), {"x": x}, {"x": x})
    change = int8_static.Int8Static()
    assert change.layers(ready.model) == ["layer"] and change.why_not(ready.model, "") is None
    told = change.make(ready, "", [])
    weights = {one.name.removesuffix("_quantized"): one.data_type for one in told.model.graph.initializer if len(one.dims) > 1}
    assert weights["turned"] == kind.FLOAT and weights["weight"] == kind.INT8
    assert 0 < ready.error_of(told.model) < 0.1


def test_the_base_computes_as_the_package(workshop: Workshop, package: Package) -> None:
    workshop.ask({"ask": "start", "batch": 1}, 100.0)
    base = OnnxRuntime(workshop.folder / f"{BASE}.onnx", torch.device("cpu")).run(package.samples.rows)
    torch.testing.assert_close(base["probabilities"], package.samples.outputs["probabilities"], rtol=1e-5, atol=1e-5)


def test_a_slow_spell_of_the_machine_is_no_part_of_an_operators_time() -> None:
    assert profile._usual_us([2.0, 1.0, 2.0, 5000.0, 1.0, 2.0, 1.0, 900.0]) == pytest.approx(1.5)
    assert profile._usual_us([3.0]) == 3.0
