"""A package on a GPU: the run's outputs, from every runtime, in batches of any size."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import flatout as fo
from flatout.packaging.package import Package
from flatout.packaging.parity import compare
from flatout.packaging.runtimes.compiled import LARGEST, CompiledRuntime
from flatout.packaging.runtimes.eager import EagerRuntime

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")


@pytest.fixture(scope="module", params=["fp32", "bf16"])
def package(request: Any, tmp_path_factory: pytest.TempPathFactory) -> Package:
    place = tmp_path_factory.mktemp("package")
    recipe = fo.Recipe(data=fo.data.digits(holdout=0.2), model="convnet", batch=64, lr=3e-3, budget="20 steps",
                       settings={"device": "cuda", "precision": request.param})  # fmt: skip
    run = fo.run(recipe, runs=place / "runs", cache=None, planning="off")
    made: Package = fo.export(run, place / "package", cache=None)
    return made


@pytest.mark.parametrize("kind", [EagerRuntime, CompiledRuntime])
def test_it_gives_the_outputs_of_the_run(package: Package, kind: Any) -> None:
    parts = package.parts(torch.device("cuda"))
    parity = compare(kind.load(parts).run, package.samples, parts.allowed)
    assert parity.holds, parity.problem


def test_a_captured_batch_keeps_its_results_after_the_next_one(package: Package) -> None:
    runtime = CompiledRuntime.load(package.parts(torch.device("cuda")))
    rows = package.samples.rows
    first = runtime.run({name: column[:5] for name, column in rows.items()})["probabilities"]
    before = first.clone()
    runtime.run({name: column[5:8] for name, column in rows.items()})
    assert torch.equal(first, before)


def test_more_rows_than_a_graph_holds_are_answered_in_pieces(package: Package) -> None:
    runtime = CompiledRuntime.load(package.parts(torch.device("cuda")))
    many = {name: column.repeat(5, *[1] * (column.dim() - 1)) for name, column in package.samples.rows.items()}
    made = runtime.run(many)["probabilities"]
    once = runtime.run(package.samples.rows)["probabilities"]
    assert len(made) > LARGEST
    torch.testing.assert_close(made[: len(once)], once, atol=1e-2, rtol=0)  # another batch size has other kernels


def test_predict_on_the_gpu_is_that_of_the_run(package: Package, tmp_path: Path) -> None:
    pixels = package.samples.rows["x"].numpy()
    made = package.predict(pixels, device=torch.device("cuda"), cache=tmp_path)
    assert (made["prediction"] == package.samples.outputs["prediction"]).float().mean() > 0.98  # near ties differ in bf16
