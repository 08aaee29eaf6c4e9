"""Faults as quantisers, runtimes and data have them, planted one at a time: shrink's own gates refuse what came of each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from gating import judged
from onnx import numpy_helper
from torch import Tensor

from flatout.base.errors import DataError, ModelError
from flatout.data.source import Batch
from flatout.measure.judging import Rejection
from flatout.packaging import derived
from flatout.packaging.derived import NewModel, write_derived
from flatout.packaging.package import Package
from flatout.packaging.runtimes.onnxruntime_runtime import OnnxRuntime
from flatout.shrinking import rows as row_sets
from flatout.shrinking.changes.ranges import Ranges
from flatout.shrinking.rows import CALIBRATING, JUDGING, TUNING, RowSets
from flatout.shrinking.step import ShrinkStep
from flatout.shrinking.workshop.material import PackageMaterial
from flatout.shrinking.workshop.workshop import Workshop

STATIC, DYNAMIC = ShrinkStep("int8_static", ""), ShrinkStep("int8_dynamic", "")
Patch = pytest.MonkeyPatch
REFUSED = (Rejection.UNPROVEN, Rejection.DIFFERENT)


def sets(patch: Patch, change: Callable[[onnx.ModelProto], None]) -> None:
    """What a quantiser writes is changed."""
    whole = PackageMaterial.named
    patch.setattr(PackageMaterial, "named", lambda self, model: (change(model), whole(self, model))[1])


def answers(patch: Patch, wrong: Callable[[dict[str, Tensor], Batch], bool]) -> None:
    """The runtime gives other answers to the rows where `wrong` says so; only of a quantised model."""
    loaded, right = OnnxRuntime.__init__, OnnxRuntime.run
    quantised = set[OnnxRuntime]()

    def load(self: OnnxRuntime, path: Path, device: torch.device) -> None:
        loaded(self, path, device)
        if any(one.name.endswith("_scale") for one in onnx.load(path).graph.initializer):
            quantised.add(self)

    def run(self: OnnxRuntime, rows: Batch) -> dict[str, Tensor]:
        made = right(self, rows)
        return {name: _turned(one) for name, one in made.items()} if self in quantised and wrong(made, rows) else made

    patch.setattr(OnnxRuntime, "__init__", load)
    patch.setattr(OnnxRuntime, "run", run)


def _turned(one: Tensor) -> Tensor:
    """Class numbers one further, and probabilities with them."""
    return one.roll(1, 1) if one.dim() > 1 else (one + 1) % 4


def scales(model: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    yield from (one for one in model.graph.initializer if one.name.endswith("_scale") and np.prod(one.dims) > 4)


def put(tensor: onnx.TensorProto, values: Any) -> None:
    tensor.CopyFrom(numpy_helper.from_array(np.ascontiguousarray(values), tensor.name))


# ---- the quantiser ----


def clips(patch: Patch) -> None:
    whole = Ranges.of
    patch.setattr(Ranges, "of", lambda self, method: {
        name: (low / 40, high / 40) for name, (low, high) in whole(self, method).items()
    })  # fmt: skip


def turned_scales(patch: Patch) -> None:
    def turn(model: onnx.ModelProto) -> None:
        """A scale for each channel, by which is divided instead of multiplied."""
        for one in scales(model):
            values = numpy_helper.to_array(one)
            put(one, (values.mean() ** 2 / values)[::-1])

    sets(patch, turn)


def signed_zero_points(patch: Patch) -> None:
    def shift(model: onnx.ModelProto) -> None:
        for one in model.graph.initializer:
            if one.name.endswith("_zero_point") and one.data_type == onnx.TensorProto.UINT8:
                put(one, numpy_helper.to_array(one) + np.uint8(128))  # 0 is the middle, as of int8

    sets(patch, shift)


def without_zero_points(patch: Patch) -> None:
    """4 bits are stored as 0 to 15, and 8 stands for 0."""

    def shift(model: onnx.ModelProto) -> None:
        for node in model.graph.node:
            if node.op_type == "DequantizeLinear" and node.input[0].endswith("/int4"):
                shape = next(one.dims for one in model.graph.initializer if one.name == node.input[1])
                eights = np.full(shape, -8, np.int8).reshape(-1)
                model.graph.initializer.append(
                    onnx.helper.make_tensor(f"{node.name}/zero", onnx.TensorProto.INT4, shape, eights)
                )
                node.input.append(f"{node.name}/zero")

    sets(patch, shift)


def kernels_in_another_layout(patch: Patch) -> None:
    def swap(model: onnx.ModelProto) -> None:
        for one in model.graph.initializer:
            if len(one.dims) == 4:
                put(one, numpy_helper.to_array(one).swapaxes(2, 3))

    sets(patch, swap)


# ---- the runtime ----


def saturating_sums(patch: Patch) -> None:
    """As kernels add products of bytes that have no wider instruction: in 16 bits."""

    def saturate(model: onnx.ModelProto) -> None:
        nodes = list(model.graph.node)
        del model.graph.node[:]
        limits = [numpy_helper.from_array(np.float32(value), f"limit{value}") for value in (-(2**15), 2**15 - 1)]
        model.graph.initializer.extend(limits)
        for node in nodes:
            model.graph.node.append(node)
            if node.op_type == "MatMulInteger":
                name, wide = node.output[0], f"{node.output[0]}/wide"
                model.graph.node[-1].output[0] = wide
                cast, clip = (f"{wide}/{step}" for step in ("float", "cut"))
                model.graph.node.extend([
                    onnx.helper.make_node("Cast", [wide], [cast], to=onnx.TensorProto.FLOAT),
                    onnx.helper.make_node("Clip", [cast, *(one.name for one in limits)], [clip]),
                    onnx.helper.make_node("Cast", [clip], [name], to=onnx.TensorProto.INT32),
                ])  # fmt: skip

    sets(patch, saturate)


def wrong_in_calls_of(size: int) -> Callable[[Patch], None]:
    return lambda patch: answers(patch, lambda made, rows: len(made["prediction"]) == size)


def right_on_the_samples_alone(package: Package) -> Callable[[Patch], None]:
    known = {row.numpy().tobytes() for row in package.samples.rows["x"]}

    def wrong(made: dict[str, Tensor], rows: Batch) -> bool:
        return not all(row.numpy().tobytes() in known for row in rows["x"])

    return lambda patch: answers(patch, wrong)


def without_softmax(patch: Patch) -> None:
    """The classes are right, and the probabilities are none: logits, of which the largest has the same place."""

    def cut(model: onnx.ModelProto) -> None:
        for node in model.graph.node:
            if node.op_type == "Softmax":
                node.op_type = "Identity"
                del node.attribute[:]

    sets(patch, cut)


FAULTS: dict[str, tuple[Callable[[Patch], None], ShrinkStep]] = {
    "a quantiser that clips": (clips, STATIC),
    "scales of other channels": (turned_scales, STATIC),
    "zero points of unsigned bytes taken for signed": (signed_zero_points, STATIC),
    "4 bits without their zero point": (without_zero_points, ShrinkStep("weights", "int4")),
    "convolutions with height and width exchanged": (kernels_in_another_layout, STATIC),
    "sums that saturate in 16 bits": (saturating_sums, DYNAMIC),
    "probabilities without a softmax": (without_softmax, DYNAMIC),
    "a runtime that is wrong in calls of 64": (wrong_in_calls_of(64), STATIC),
    "a runtime that is wrong in calls of 1": (wrong_in_calls_of(1), STATIC),
}


@pytest.mark.parametrize("name", FAULTS)
def test_what_a_fault_made_is_refused(name: str, workshop: Workshop, monkeypatch: Patch) -> None:
    plant, step = FAULTS[name]
    plant(monkeypatch)
    found = judged(workshop, step)
    assert found.judgement.rejection in REFUSED, found.judgement.why
    assert ("in calls of 1" in found.judgement.why) == (name == "a runtime that is wrong in calls of 1")


def test_a_runtime_that_is_right_on_the_samples_alone_is_refused(
    workshop: Workshop, package: Package, monkeypatch: Patch
) -> None:
    right_on_the_samples_alone(package)(monkeypatch)
    assert judged(workshop, STATIC).judgement.rejection in REFUSED


def test_calibration_rows_of_one_class_are_caught(package: Package, rows: RowSets) -> None:
    """Grey pictures of one class: the ranges are far too small for all others."""
    some = rows.sets[CALIBRATING]
    grey = {"x": torch.full_like(some["x"], 128), "y": torch.zeros_like(some["y"])}
    with Workshop(package, RowSets({**rows.sets, CALIBRATING: grey}, ""), "classify", isolated=False) as workshop:
        workshop.serve_with("onnxruntime")
        assert judged(workshop, STATIC).judgement.rejection in REFUSED


def test_held_out_rows_that_calibrate_too_are_refused_or_left_out(rows: RowSets) -> None:
    held = rows.sets[JUDGING]
    leaking = {**rows.sets, CALIBRATING: {key: one[:700] for key, one in held.items()}}
    leaking[TUNING] = {key: one[:100] for key, one in rows.sets[TUNING].items()}
    with pytest.raises(DataError, match=r"8\d% of the rows for calibration and choices are also in the file.*--data"):
        row_sets._apart(leaking, "the file")
    few = {key: torch.cat([one, held[key][:20]]) for key, one in rows.sets[TUNING].items()}
    apart = row_sets._apart({**rows.sets, TUNING: few}, "the file")
    assert apart.repeated == 20 and torch.equal(apart.sets[TUNING]["x"], rows.sets[TUNING]["x"])
    same = {"x": torch.arange(40)[:, None] % 4, "y": torch.arange(40) % 4}  # there are only four different rows
    assert row_sets._apart({CALIBRATING: same, TUNING: same, JUDGING: same}, "").count(CALIBRATING) == 40


def test_a_file_with_another_model_than_the_judged_one_is_not_written(
    workshop: Workshop, package: Package, monkeypatch: Patch, tmp_path: Path
) -> None:
    """The source in its place: its outputs are as far away as the change made them, so the tolerance lets it pass."""
    workshop.ask({"ask": "make", "steps": [STATIC.to_dict()], "name": "candidate"}, 100.0)
    outputs = OnnxRuntime(workshop.folder / "candidate.onnx", torch.device("cpu")).run(package.samples.rows)
    core = onnx.load(workshop.folder / "candidate.onnx")
    assert write_derived(package, tmp_path / "right", NewModel(core, outputs, 0.5), {}, {}).samples.outputs
    monkeypatch.setattr(derived, "with_core", lambda whole, core: whole)
    with pytest.raises(ModelError, match=r"does not give the outputs that were judged.*nothing was written"):
        write_derived(package, tmp_path / "shrunk", NewModel(core, outputs, 0.5), {}, {})
    assert not (tmp_path / "shrunk").exists()


# ---- and what has no fault ----


@pytest.mark.parametrize("change", ["int8_static", "int8_dynamic", "float16"])
def test_sound_changes_pass(workshop: Workshop, change: str) -> None:
    found = judged(workshop, ShrinkStep(change, ""), batches=(1, 64))
    assert found.judgement.kept, found.judgement.why
