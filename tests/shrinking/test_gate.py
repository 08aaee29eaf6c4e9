"""The gate on real models: planted faults are caught by the accuracy of held-out rows, whatever made them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch

from flatout.packaging.package import Package
from flatout.packaging.runtimes.onnxruntime_runtime import OnnxRuntime
from flatout.shrinking.changes import int8_static
from flatout.shrinking.changes.ranges import Ranges
from flatout.shrinking.metric import metrics_of
from flatout.shrinking.rows import CALIBRATING, JUDGING, RowSets
from flatout.shrinking.workshop import material
from flatout.shrinking.workshop.bench import BASE, CandidateBench
from flatout.shrinking.workshop.workshop import Workshop

STATIC = {"change": "int8_static", "value": "", "floats": []}


@pytest.fixture
def workshop(package: Package, rows: RowSets) -> Iterator[Workshop]:
    with Workshop(package, rows, "classify", isolated=False) as made:
        made.serve_with("onnxruntime")
        yield made


def made(workshop: Workshop, step: dict[str, Any] = STATIC, name: str = "candidate") -> dict[str, Any]:
    return workshop.ask({"ask": "make", "steps": [step], "name": name}, 100.0)


def passes(workshop: Workshop, name: str = "candidate") -> bool:
    (metric,) = metrics_of("classify", 1.0)
    costs = []
    for one in ("source", name):
        with np.load(workshop.ask({"ask": "judge", "name": one, "which": JUDGING, "batch": 64}, 100.0)["file"]) as kept:
            costs.append({key: kept[key] for key in kept.files})
    assert metric.of(costs[0]) > 0.95
    return metric.check(costs[0], costs[1], 1).passed


def edited(workshop: Workshop, change: Callable[[onnx.ModelProto], None]) -> None:
    file = workshop.folder / "candidate.onnx"
    model = onnx.load(file)
    change(model)
    file.write_bytes(model.SerializeToString())
    workshop._bench = CandidateBench(workshop.folder)  # nothing is loaded yet


@pytest.mark.parametrize("change", ["int8_static", "int8_dynamic", "float16"])
def test_sound_changes_pass(workshop: Workshop, change: str) -> None:
    before = workshop.ask({"ask": "start", "batch": 1}, 100.0)["bytes"]
    assert made(workshop, {**STATIC, "change": change})["bytes"] < before
    assert passes(workshop)


def test_weights_alone_are_smaller_and_pass(workshop: Workshop) -> None:
    before = workshop.ask({"ask": "start", "batch": 1}, 100.0)["bytes"]
    assert made(workshop, {**STATIC, "change": "weights", "value": "int8"})["bytes"] < 0.6 * before
    assert passes(workshop)


def test_layers_that_stay_float_are_not_quantised(workshop: Workshop) -> None:
    layers = workshop.ask({"ask": "start", "batch": 1}, 100.0)["changes"]["int8_static"][""]["layers"]
    assert len(layers) == 4
    made(workshop, {**STATIC, "floats": layers[:2]})
    weights = [one for one in onnx.load(workshop.folder / "candidate.onnx").graph.initializer if len(one.dims) >= 2]
    kinds = sorted(one.data_type for one in weights)
    assert kinds == [onnx.TensorProto.FLOAT] * 2 + [onnx.TensorProto.INT8] * 2


def test_a_quantiser_that_clips_is_caught(workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = Ranges.of
    monkeypatch.setattr(Ranges, "of", lambda self, method: {
        name: (low / 40, high / 40) for name, (low, high) in whole(self, method).items()
    })  # fmt: skip
    made(workshop)
    assert not passes(workshop)


def test_a_transposed_scale_is_caught(workshop: Workshop) -> None:
    made(workshop)

    def turned(model: onnx.ModelProto) -> None:
        """The scales of the channels in another order."""
        for tensor in model.graph.initializer:
            if tensor.name.endswith("_scale") and np.prod(tensor.dims) > 4:
                values = onnx.numpy_helper.to_array(tensor)
                other = (values[::-1] * np.linspace(0.1, 4, len(values))).astype(np.float32)
                tensor.CopyFrom(onnx.numpy_helper.from_array(other, tensor.name))

    edited(workshop, turned)
    assert not passes(workshop)


def test_a_calibration_set_with_one_class_is_caught(package: Package, rows: RowSets) -> None:
    """Dark pictures of one class: the ranges are far too small for all others."""
    dark = rows.sets[CALIBRATING]
    blank = {"x": torch.full_like(dark["x"], 128), "y": torch.zeros_like(dark["y"])}
    with Workshop(package, RowSets({**rows.sets, CALIBRATING: blank}, ""), "classify", isolated=False) as workshop:
        workshop.serve_with("onnxruntime")
        made(workshop)
        assert not passes(workshop)


def test_a_runtime_with_wrong_convolutions_is_caught(workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    made(workshop)
    right = OnnxRuntime.run

    def wrong(self: OnnxRuntime, some: Any) -> Any:
        found = right(self, some)
        if self is workshop._bench._runtimes.get("candidate"):  # type: ignore[union-attr]
            found["prediction"] = found["prediction"].roll(1)
        return found

    monkeypatch.setattr(OnnxRuntime, "run", wrong)
    assert not passes(workshop)


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
    from flatout.base.answering_child import NoAnswer
    from flatout.shrinking.changes.change import ChangedModel
    from flatout.shrinking.changes.int8_dynamic import Int8Dynamic

    def unknown(self: Any, ready: Any, value: str, floats: Any) -> ChangedModel:
        model = ready.model
        model.graph.node[0].op_type = "NoSuchOperator"
        return ChangedModel(model)

    monkeypatch.setattr(Int8Dynamic, "make", unknown)
    with pytest.raises(NoAnswer, match="NoSuchOperator"):
        made(workshop, {**STATIC, "change": "int8_dynamic"})


def test_the_base_computes_as_the_package(workshop: Workshop, package: Package) -> None:
    workshop.ask({"ask": "start", "batch": 1}, 100.0)
    base = OnnxRuntime(workshop.folder / f"{BASE}.onnx", torch.device("cpu")).run(package.samples.rows)
    torch.testing.assert_close(base["probabilities"], package.samples.outputs["probabilities"], rtol=1e-5, atol=1e-5)
