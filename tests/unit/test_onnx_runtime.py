"""onnxruntime on the file of a package: weights next to it, rows prepared already."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from onnx_models import answers
from safetensors.torch import save_file

from flatout.base.errors import MachineError, MissingExtra
from flatout.data.augment.crops import CenterCrop
from flatout.data.fitted.codings import Category, Codings, Label, Number
from flatout.data.fitted.photo_rows import PhotoHost
from flatout.data.fitted.table_rows import TableHost
from flatout.packaging.onnx_graph import IR_VERSION, OPSET
from flatout.packaging.onnx_photos import with_raw_photos
from flatout.packaging.onnx_table import with_raw_columns
from flatout.packaging.onnx_weights import outside
from flatout.packaging.runtimes import onnxruntime_runtime
from flatout.packaging.runtimes.onnxruntime_runtime import OnnxRuntime

CPU = torch.device("cpu")
WEIGHTS = {
    "table": torch.rand(20, 30), "turned": torch.rand(30, 25), "bias": torch.rand(25), "other": torch.rand(20, 30),
}  # fmt: skip
OWN = torch.rand(25, 25)  # not in the weights file


def looked_up() -> onnx.ModelProto:
    """numeric [rows, 1] and ids [rows, 1] -> scores of 25 classes; one weight is stored transposed in the file."""
    values = {
        "embed": WEIGHTS["table"], "head": WEIGHTS["turned"], "bias": WEIGHTS["bias"],
        "own": OWN, "axis": torch.tensor([1]),
    }  # fmt: skip
    constants = [numpy_helper.from_array(np.ascontiguousarray(value.numpy()), name) for name, value in values.items()]
    nodes = [
        helper.make_node("Squeeze", ["ids", "axis"], ["id"]),
        helper.make_node("Gather", ["embed", "id"], ["hidden"]),
        helper.make_node("Mul", ["hidden", "numeric"], ["scaled"]),
        helper.make_node("MatMul", ["scaled", "head"], ["logits"]),
        helper.make_node("Add", ["logits", "bias"], ["moved"]),
        helper.make_node("MatMul", ["moved", "own"], ["scores"]),
        helper.make_node("ArgMax", ["scores"], ["prediction"], axis=1, keepdims=0),
    ]
    inputs = [
        helper.make_tensor_value_info("numeric", TensorProto.FLOAT, ["rows", 1]),
        helper.make_tensor_value_info("ids", TensorProto.INT32, ["rows", 1]),
    ]
    outputs = [
        helper.make_tensor_value_info("prediction", TensorProto.INT64, ["rows"]),
        helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["rows", 25]),
    ]
    graph = helper.make_graph(nodes, "model", inputs, outputs, constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION)


def host() -> TableHost:
    names = tuple(f"job {place}" for place in range(19))
    return TableHost(Codings((Number("age"), Category("job", names))), Label("y", tuple("abcdefghijklmnopqrstuvwxy")), {})


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    """`turned` is [25, 30] in the file, and [30, 25] in the model."""
    save_file({**WEIGHTS, "turned": WEIGHTS["turned"].T.contiguous()}, tmp_path / "weights.safetensors")
    return tmp_path / "weights.safetensors"


def test_weights_of_the_package_are_not_stored_twice(stored: Path) -> None:
    model = with_raw_columns(looked_up(), host())
    small = outside(model, stored)
    kept = {tensor.name for tensor in small.graph.initializer if tensor.data_location == TensorProto.EXTERNAL}
    assert kept == {"model/embed", "model/head/stored"}  # `own` is not in the file, `bias` is small
    assert all(entry.value == "weights.safetensors" for t in small.graph.initializer for entry in t.external_data[:1])
    path = stored.with_name("model.onnx")
    path.write_bytes(small.SerializeToString())
    assert path.stat().st_size < len(model.SerializeToString()) - 4 * 20 * 30 * 2 + 1000
    onnx.checker.check_model(str(path))
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    given: dict[str, Any] = {"age": np.array([1.5, 2.0]), "job": np.array(["job 3", "none"], object)}
    wanted = answers(model, given)
    for output, found in zip(session.get_outputs(), session.run(None, given), strict=True):
        np.testing.assert_array_equal(found, wanted[output.name])


@pytest.mark.parametrize("front", [True, False])
@pytest.mark.parametrize("rows", [1, 5, 64])
def test_prepared_rows_go_to_the_model_directly(stored: Path, rows: int, front: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    model = with_raw_columns(looked_up(), host()) if front else looked_up()
    path = stored.with_name("model.onnx")
    path.write_bytes(outside(model, stored).SerializeToString())
    monkeypatch.chdir("/")  # weights are found next to the file, not in the working folder
    numeric, ids = torch.rand(rows, 1), torch.randint(0, 20, (rows, 1), dtype=torch.int32)
    found = OnnxRuntime(path, CPU).run({"numeric": numeric, "ids": ids})
    wanted = answers(looked_up(), {"numeric": numeric.numpy(), "ids": ids.numpy()})
    assert list(found) == ["prediction", "scores"]  # text is no tensor: `class` is left out
    for name, tensor in found.items():
        np.testing.assert_array_equal(tensor.numpy(), wanted[name])


def test_small_batches_on_one_thread_have_the_same_answers(stored: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = stored.with_name("model.onnx")
    path.write_bytes(outside(looked_up(), stored).SerializeToString())
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        runtime = OnnxRuntime(path, CPU)
    finally:
        torch.set_num_threads(before)
    rows = {"numeric": torch.rand(64, 1), "ids": torch.randint(0, 20, (64, 1), dtype=torch.int32)}
    wanted = runtime.run(rows)
    measured = iter((1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 2.0, 1.0))  # one thread, several: slower from 8 rows on
    monkeypatch.setattr(onnxruntime_runtime, "_quickest_s", lambda session, given: next(measured))
    assert runtime.tune(rows) == 4
    assert runtime.tune(rows) == 4  # it was measured
    for size in (1, 4, 5, 64):
        found = runtime.run_arrays({name: column[:size].numpy() for name, column in rows.items()})
        for name, array in found.items():
            np.testing.assert_array_equal(array, wanted[name][:size].numpy())


def test_cropped_photos_go_to_the_model_directly(tmp_path: Path) -> None:
    nodes = [helper.make_node("Cast", ["x"], ["mean"], to=TensorProto.FLOAT)]
    shape = ["rows", 3, 4, 4]
    graph = helper.make_graph(
        nodes, "model", [helper.make_tensor_value_info("x", TensorProto.UINT8, shape)],
        [helper.make_tensor_value_info("mean", TensorProto.FLOAT, shape)],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION)
    path = tmp_path / "model.onnx"
    path.write_bytes(with_raw_photos(model, PhotoHost(5, "auto"), CenterCrop(4, 5)).SerializeToString())
    x = torch.randint(0, 256, (2, 4, 4, 3), dtype=torch.uint8).permute(0, 3, 1, 2)  # channels last, as crops are
    assert torch.equal(OnnxRuntime(path, CPU).run({"x": x})["mean"], x.float())


def test_without_onnxruntime_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(MissingExtra, match=r"onnxruntime.*flatout\[export\]"):
        OnnxRuntime(tmp_path / "model.onnx", CPU)


def test_a_device_that_onnxruntime_was_not_built_for_is_refused(stored: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: ["CPUExecutionProvider"])
    path = stored.with_name("model.onnx")
    path.write_bytes(outside(looked_up(), stored).SerializeToString())
    with pytest.raises(MachineError, match="cuda"):
        OnnxRuntime(path, torch.device("cuda"))
