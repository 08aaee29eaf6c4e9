"""fp8, int8 and 2:4 sparsity on a GPU: their arithmetic, and a whole search whose gates decide whether it pays."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import fp8_by_hand
import int8_by_hand
import numpy as np
import pytest
import torch
from torch import Tensor, nn

import flatout as fo
from flatout.packaging.capture import capture
from flatout.packaging.package import Package
from flatout.packaging.program import Program
from flatout.shrinking.changes.fp8 import Fp8
from flatout.shrinking.changes.int8_products import Int8Products
from flatout.shrinking.changes.program_change import ProgramChange
from flatout.shrinking.changes.sparse_2_4 import Sparse24, two_of_four
from flatout.shrinking.training.graph import shapes_of

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available() or torch.cuda.get_device_capability() < (8, 9), reason="needs a CUDA GPU with fp8"
)


class Named(nn.Module):
    """As a package's model answers."""

    def __init__(self, whole: nn.Module) -> None:
        super().__init__()
        self.whole = whole

    def forward(self, *columns: Tensor) -> dict[str, Tensor]:
        return {"prediction": self.whole(*columns)}


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Package:
    """Layers 4,096 wide, where products take long enough to gain; 6,000 held-out rows."""
    place = tmp_path_factory.mktemp("package")
    random = np.random.default_rng(0)
    x = random.normal(size=(12_000, 512)).astype(np.float32)
    y = (x @ random.normal(size=(512, 8))).argmax(1)
    np.savez(place / "rows.npz", x=x, y=y)
    recipe = fo.Recipe(
        data={"arrays": str(place / "rows.npz"), "holdout": 0.5}, model={"mlp": {"hidden": [4096, 4096, 4096]}}, batch=256,
        lr=1e-4, budget="300 steps", evaluate=None, settings={"device": "cuda", "precision": "bf16"},
    )  # fmt: skip
    run = fo.run(recipe, runs=place / "runs", cache=None, planning="off")
    made: Package = fo.export(run, place / "package", cache=None)
    return made


@pytest.mark.parametrize(("change", "by_hand"), [(Fp8(), fp8_by_hand), (Int8Products(), int8_by_hand)])
@pytest.mark.parametrize("rows", [1, 7, 64, 256])
def test_the_kernel_computes_as_the_arithmetic(
    rows: int, device: torch.device, change: ProgramChange, by_hand: ModuleType
) -> None:
    torch.manual_seed(0)
    layer, x = nn.Linear(512, 4096).eval(), torch.randn(256, 512) * torch.logspace(-2, 2, 256)[:, None]
    captured = capture(Named(layer), {"x": x})
    shapes = shapes_of(captured.program, captured.weights, {"x": x})
    made = change.make(captured.program, captured.weights, "fp32", shapes, ())
    assert made.notes["layers"] == 1
    (found,) = made.program.module(made.weights, device)(x[-rows:].to(device))
    with torch.no_grad():
        wanted = by_hand.linear(x[-rows:], layer.weight, layer.bias).float()
    off = (found.cpu() - wanted).abs().amax(1) / wanted.abs().amax(1)  # rows differ in size by 10,000
    assert off.max() < 0.01, off


@pytest.mark.parametrize("rows", [1, 7, 64, 256])
def test_sparse_products_are_those_of_the_weights_that_stay(package: Package, rows: int) -> None:
    program = package.program
    assert isinstance(program, Program)
    change = Sparse24()
    why_not = change.why_not(program, package.weights, torch.device("cuda"))
    if why_not is not None:
        pytest.skip(why_not)
    shapes = shapes_of(program, package.weights, package.samples.first(2).rows)
    made = change.make(program, package.weights, "fp32", shapes, ())
    kept = {
        name: two_of_four(one) if name in change.layers(program, package.weights) else one
        for name, one in package.weights.items()
    }
    x = package.samples.rows["x"].repeat(2, 1)[:rows]
    sparse = made.program.module(made.weights, torch.device("cuda"))(x.cuda())[-1].float().cpu()
    dense = program.module(kept, torch.device("cpu"))(x)[-1].float()
    torch.testing.assert_close(sparse, dense, atol=0.05, rtol=0.05)


def test_a_search_on_a_gpu_says_what_it_gained_or_why_not(package: Package, tmp_path: Path) -> None:
    shrunk = fo.shrink(package, tmp_path / "shrunk", device="cuda", batch=(1, 256), margin=1.0, cache=None, say=print)
    print(shrunk)
    (fp8,) = [one for one in shrunk.receipt.entries if (one.name, one.value) == ("fp8", "")]
    assert "NVIDIA" in shrunk.receipt.machine and fp8.why
    assert fp8.verdict in ("kept", "rejected") and not fp8.why.startswith("failed"), fp8.why
    x = package.samples.rows["x"][:70].numpy()
    found = shrunk.package.predict(x, device=torch.device("cuda"))
    wanted = package.predict(x, device=torch.device("cuda"))
    assert (np.asarray(found["prediction"]) == np.asarray(wanted["prediction"])).mean() > 0.9
    sparse = [one for one in shrunk.receipt.entries if one.name == "sparse_2_4"]
    assert sparse and not any(one.why.startswith("failed") for one in sparse), sparse
    whole = [one for one in shrunk.receipt.entries if one.name == "int8"]
    assert whole and not any(one.why.startswith("failed") for one in whole), whole
    if shrunk.kept:
        assert all(one["now"]["joules_a_row"] > 0 for one in shrunk.about["final"].values())
        assert shrunk.about["size"]["now"] < 0.6 * shrunk.about["size"]["was"]
        assert all(one["speed"] > 0.98 for one in shrunk.about["final"].values())
