"""fp8 of a package's program: its arithmetic, which torch has on a CPU too, and the gates that judge it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from fp8_by_hand import linear
from gating import arm, judged
from torch import Tensor, nn

import flatout as fo
from flatout.base.errors import MachineError, ModelError
from flatout.measure.judging import Rejection
from flatout.models.gpt import gpt
from flatout.packaging import row_scales
from flatout.packaging.capture import capture
from flatout.packaging.derived import NewProgram, write_derived
from flatout.packaging.package import Package, open_package
from flatout.packaging.program import Program
from flatout.shrinking import making
from flatout.shrinking.changes.fp8 import Fp8
from flatout.shrinking.changes.program_change import ChangedProgram
from flatout.shrinking.request import ShrinkRequest
from flatout.shrinking.rows import RowSets
from flatout.shrinking.step import ShrinkStep
from flatout.shrinking.training.graph import shapes_of
from flatout.shrinking.trials import ShrinkTrials
from flatout.shrinking.views.receipt import shrink_doc
from flatout.shrinking.workshop.answers import LOG_PROBABILITIES
from flatout.shrinking.workshop.program_bench import with_log_probabilities
from flatout.shrinking.workshop.workshop import Workshop

FP8 = ShrinkStep("fp8", "")
CPU = torch.device("cpu")


class Layers(nn.Module):
    """Two that are wide enough, and one that is not."""

    def __init__(self, bias: bool) -> None:
        super().__init__()
        self.model = nn.Sequential(nn.Linear(64, 128, bias=bias), nn.ReLU(), nn.Linear(128, 64, bias=bias), nn.Linear(64, 10))

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"prediction": self.model(x)}


def changed(module: nn.Module, x: Tensor, precision: str = "fp32", floats: tuple[str, ...] = ()) -> ChangedProgram:
    captured = capture(Taking(module.eval()), {"x": x})
    shapes = shapes_of(captured.program, captured.weights, {"x": x})
    made = Fp8().make(captured.program, captured.weights, precision, shapes, floats)
    written = json.loads(json.dumps(made.program.to_json()))
    return ChangedProgram(Program.from_json(written), made.weights, made.notes)


class Taking(nn.Module):
    def __init__(self, whole: nn.Module) -> None:
        super().__init__()
        self.whole = whole

    def forward(self, *columns: Tensor) -> dict[str, Tensor]:
        made: dict[str, Tensor] = self.whole(*columns)
        return made


@pytest.mark.parametrize("shape", [(5, 64), (5, 7, 64), (2, 3, 4, 64)])
@pytest.mark.parametrize("bias", [True, False])
def test_the_arithmetic_is_that_of_rounded_inputs_and_weights(shape: tuple[int, ...], bias: bool) -> None:
    torch.manual_seed(0)
    module, x = Layers(bias), torch.randn(shape)
    made = changed(module, x)
    assert made.notes["layers"] == 2
    for rows in (x, torch.randn(3, *shape[1:])):  # a batch of any size
        (found,) = made.program.module(made.weights, CPU)(rows)
        with torch.no_grad():
            first, _, second, last = module.model
            hidden = linear(rows, first.weight, first.bias).to(torch.bfloat16).float().relu()
            wanted = last(linear(hidden, second.weight, second.bias).float())
            torch.testing.assert_close(found, wanted, atol=0.02, rtol=0.02)
            whole = module(rows)["prediction"]
        assert found.dtype == torch.float32 and found.shape == whole.shape
        assert 0 < (found - whole).abs().mean() < 0.1 * whole.abs().mean()


def test_rows_of_very_different_sizes_do_not_share_a_scale() -> None:
    torch.manual_seed(0)
    module, x = Layers(False), torch.randn(4, 64) * torch.tensor([1e-4, 1.0, 1e3, 0.0])[:, None]
    made = changed(module, x)
    (found,) = made.program.module(made.weights, CPU)(x)
    last = module.model[-1].bias
    with torch.no_grad():
        small, whole = (one[0] - last for one in (found, module(x)["prediction"]))
    assert (small - whole).abs().max() < 0.15 * whole.abs().max() and torch.equal(found[3], last)


def test_a_torch_without_it_on_a_cpu_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    made = changed(Layers(True), torch.randn(5, 64))

    def per_tensor_only(*arguments: object, **options: object) -> Tensor:
        raise RuntimeError("Now _scaled_mm only supports per-tensor scaling for CPU")

    monkeypatch.setattr(torch, "_scaled_mm", per_tensor_only)
    row_scales._a_cpu_has_them.cache_clear()
    try:
        with pytest.raises(MachineError, match="on a GPU only"):
            made.program.module(made.weights, CPU)
    finally:
        row_scales._a_cpu_has_them.cache_clear()


def test_weights_take_a_quarter_and_layers_can_stay_as_they_are() -> None:
    module, x = Layers(True), torch.randn(5, 64)
    both, one = changed(module, x), changed(module, x, floats=("whole.model.0.weight",))
    assert sum(len(w) * w.element_size() for w in both.weights.values() if w.dim() == 2 and w.dtype == torch.uint8) == 192
    assert "whole.model.0.weight" not in both.weights and "whole.model.0.weight" in one.weights and one.notes["layers"] == 1
    assert set(one.weights) == set(one.program.weight_names), "what nobody reads is not kept"


def test_in_mixed_precision_products_have_its_type() -> None:
    made = changed(Layers(True), torch.randn(5, 64), precision="bf16")
    assert sum(node.operator == "aten._scaled_mm.default" for node in made.program.nodes) == 2
    before, after = (sum(node.operator == "aten.to.dtype" for node in one.program.nodes)
                     for one in (changed(Layers(True), torch.randn(5, 64)), made))  # fmt: skip
    assert before == after + 2, "float32 packages go back to float32 after each product"


def test_losses_of_a_token_model_come_from_its_graph() -> None:
    class Tokens(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = gpt(vocabulary=20, window=16, layers=1, heads=2, width=64)

        def forward(self, x: Tensor) -> dict[str, Tensor]:
            best = self.model(x).log_softmax(-1).max(-1)
            return {"prediction": best.indices, "log_probability": best.values}

    x = torch.randint(0, 20, (3, 16))
    module = Tokens()
    made = changed(module, x)
    assert made.notes["layers"] == 4 and LOG_PROBABILITIES not in [port.name for port in made.program.outputs]
    more = with_log_probabilities(made.program)
    found = more.module(made.weights, CPU)(x)[-1]
    torch.testing.assert_close(found, module.model(x).log_softmax(-1), atol=0.1, rtol=0.1)


# ---- the gates ----


@pytest.fixture
def programs(package: Package, rows: RowSets) -> Workshop:
    """The same questions, asked of programs on this CPU."""
    workshop = Workshop(package, rows, "classify", isolated=False, device="cpu")
    workshop.serve_with("eager")
    return workshop


def test_a_package_in_fp8_passes_the_gates_and_is_written(programs: Workshop, package: Package, tmp_path: Path) -> None:
    with programs as workshop:
        told = workshop.ask({"ask": "start", "batch": 1}, 100.0)
        assert list(told["seconds"]) == ["eager"] and told["changes"]["fp8"][""]["why_not"] is None
        found = judged(workshop, FP8, batches=(1, 64))
        assert found.judgement.kept, found.judgement.why
        assert found.result.bytes < told["bytes"]
        assert workshop.ask({"ask": "error", "name": found.result.name}, 10.0)["error"] > 0
        assert workshop.ask({"ask": "profile", "name": found.result.name, "batch": 1}, 10.0)["whole_us"] > 0
        assert workshop.ask({"ask": "lessons"}, 10.0)["changes"]["prune"]["50%"]["why_not"]
        made = workshop._bench._made(found.result.name)  # type: ignore[union-attr]
        outputs = workshop._bench._runtime(found.result.name).run(package.samples.rows)  # type: ignore[union-attr]
    new = NewProgram(made.program, made.weights, outputs, 0.05, CPU, "eager")
    written = write_derived(package, tmp_path / "shrunk", new, {}, {})
    answers = written.predict(package.samples.rows["x"][:9].numpy())
    assert answers["prediction"].shape == (9,) and not (tmp_path / "shrunk" / "model.onnx").exists()
    other = NewProgram(package.program, package.weights, outputs, 0.05, CPU, "eager")  # type: ignore[arg-type]
    with pytest.raises(ModelError, match="does not give the outputs that were judged"):
        write_derived(package, tmp_path / "other", other, {}, {})


def test_a_whole_shrink_of_programs(package: Package, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU, but for the device: in another process, through the search, to a package with a receipt."""
    monkeypatch.setattr(making, "_is_of_programs", lambda device: True)
    monkeypatch.setattr(
        ShrinkTrials, "_timed", lambda self, first, second, batch, turns: (arm(first, turns), arm(second, turns))
    )
    monkeypatch.setattr(ShrinkTrials, "together", lambda self, *given, **more: iter(()))
    made = making.make_smaller(package, Path("shrunk"), ShrinkRequest(margin=1.0, training_s=0.0))
    assert made.kept == ("fp8",) and any("layers" in str(one.check) for one in made.receipt.entries)
    assert "onnxruntime" not in made.receipt.versions and made.about["source"]["runtime"] == "eager"
    assert "fp8" in str(shrink_doc(open_package(Path("shrunk"))).nodes[0])


def _without_a_tail(weights: dict[str, Tensor]) -> None:
    """As a kernel computes that leaves out what is beyond its last whole tile."""
    for name in [one for one in weights if one.endswith("/fp8")]:
        weights[name][:, weights[name].shape[1] // 3 :] = 0


def _e5m2(weights: dict[str, Tensor]) -> None:
    """The bits of another kind of fp8."""
    for name in [one for one in weights if one.endswith("/fp8")]:
        values = weights[name].view(torch.float8_e4m3fn).float()
        weights[name] = values.to(torch.float8_e5m2).view(torch.uint8)


@pytest.mark.parametrize("fault", [_without_a_tail, _e5m2])
def test_faults_of_fp8_are_refused(
    programs: Workshop, fault: Callable[[dict[str, Tensor]], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    make = Fp8.make

    def wrong(self: Fp8, *given: object) -> ChangedProgram:
        made = make(self, *given)  # type: ignore[arg-type]
        fault(made.weights)
        return made

    monkeypatch.setattr(Fp8, "make", wrong)
    with programs as workshop:
        found = judged(workshop, FP8).judgement
    assert found.rejection in (Rejection.UNPROVEN, Rejection.DIFFERENT), found.why


def test_a_gpu_that_is_not_there_is_said(package: Package) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is one")
    with pytest.raises(MachineError, match="device 'cuda' is not available"):
        fo.shrink(package, device="cuda")


def test_what_has_no_wide_layer_says_so() -> None:
    module, x = nn.Sequential(nn.Linear(8, 8)), torch.randn(5, 8)

    class Small(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = module

        def forward(self, x: Tensor) -> dict[str, Tensor]:
            return {"prediction": self.model(x)}

    captured = capture(Taking(Small()), {"x": x})
    why = Fp8().why_not(captured.program, captured.weights, CPU)
    assert why is not None and "no linear layer is 64 wide" in why
