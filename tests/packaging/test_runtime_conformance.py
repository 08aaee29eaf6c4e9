"""The conformance suite on the runtimes that load at once; those that compile run it in one slow test, where asked for."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from packaged_runs import Exported
from torch import Tensor, nn

from flatout.data.source import Batch
from flatout.packaging.capture import capture
from flatout.packaging.package import Package
from flatout.packaging.runtimes.ahead import AheadRuntime
from flatout.packaging.runtimes.compiled import CompiledRuntime
from flatout.packaging.runtimes.eager import EagerRuntime
from flatout.packaging.runtimes.onnxruntime_runtime import OnnxRuntime
from flatout.packaging.runtimes.runtime import Parts, Runtime
from flatout.testing.runtimes import RuntimeConformance

CPU = torch.device("cpu")


class _OfPackage(RuntimeConformance):
    """Rows of a stored package, repeated to 64."""

    package: Package

    def parts(self) -> Parts:
        return self.package.parts(CPU)

    def rows(self) -> Batch:
        places = torch.arange(64) % len(self.package.samples)
        return {name: column[places] for name, column in self.package.samples.rows.items()}


@pytest.fixture(scope="class", params=["several", "classes_table"])
def of_package(request: pytest.FixtureRequest, exported: Callable[[str], Exported]) -> None:
    RuntimeConformance._loaded.pop(request.cls, None)
    request.cls.package = exported(request.param).package()


@pytest.mark.usefixtures("of_package")
class TestEager(_OfPackage):
    kind = EagerRuntime


@pytest.mark.usefixtures("of_package")
class TestOnnxRuntime(_OfPackage):
    kind = OnnxRuntime


class _Reuses(EagerRuntime):
    """Gives the memory of its first result again and again."""

    def run(self, rows: Batch) -> dict[str, Tensor]:
        made = super().run(rows)
        kept: dict[str, Tensor] = self.__dict__.setdefault("kept", made)
        with torch.inference_mode():
            return {name: kept[name].copy_(output) for name, output in made.items()}


class _Wrong(EagerRuntime):
    def run(self, rows: Batch) -> dict[str, Tensor]:
        return {name: output + (len(output) == 7) for name, output in super().run(rows).items()}


def test_the_suite_finds_runtimes_that_are_wrong(exported: Callable[[str], Exported]) -> None:
    def suite(wrong: type[Runtime]) -> RuntimeConformance:
        made: RuntimeConformance = type("Suite", (_OfPackage,), {"kind": wrong, "package": exported("several").package()})()
        return made

    with pytest.raises(AssertionError, match="changes the result"):
        suite(_Reuses).test_a_result_stays_when_the_next_batch_comes()
    with pytest.raises(AssertionError, match="a batch of 7"):
        suite(_Wrong).test_batches_of_all_sizes_give_the_same_outputs()


class _Tiny(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(5, 3)

    def forward(self, *columns: Tensor) -> dict[str, Tensor]:
        scores = self.layer(columns[0]).relu()
        return {"scores": scores, "prediction": scores.argmax(1)}


def test_runtimes_that_compile(tmp_path: Path) -> None:
    """Each compiles for 10 to 60 s on a busy machine. benchmarks/ compare them with the run; here only on request."""
    if not os.environ.get("FLATOUT_TEST_COMPILERS"):
        pytest.skip("set FLATOUT_TEST_COMPILERS=1 to compile a model with each runtime, which takes up to two minutes")
    if shutil.which("g++") is None and shutil.which("clang++") is None:
        pytest.skip("there is no C++ compiler")
    captured = capture(_Tiny().eval(), {"x": torch.randn(6, 5)})
    drawn = torch.randn(64, 5)

    for runtime in (CompiledRuntime, AheadRuntime):

        class Suite(RuntimeConformance):
            kind = runtime

            def parts(self) -> Parts:
                return Parts(captured.program, captured.weights, CPU, compiled=tmp_path)

            def rows(self) -> Batch:
                return {"x": drawn}

        suite = Suite()
        for name in dir(Suite):
            if name.startswith("test_"):
                vars(RuntimeConformance)[name](suite)
