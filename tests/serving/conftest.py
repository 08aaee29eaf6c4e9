"""Runs are trained and exported once for all tests of this folder."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent.parent / "packaging"))

from packaged_runs import KINDS, Exported


@pytest.fixture(scope="session")
def packaged(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Exported]:
    """By the name of a kind, as in tests/packaging. Packages of it must not be changed."""
    from flatout.packaging import export as exporting
    from flatout.packaging import package

    made: dict[str, Exported] = {}

    def one(kind: str) -> Exported:
        if kind not in made:
            folder = tmp_path_factory.mktemp(kind)
            with pytest.MonkeyPatch.context() as patch:
                patch.setenv("FLATOUT_CACHE", str(folder / "cache"))
                patch.chdir(folder)
                patch.setattr(package, "SIZES", (1,))
                patch.setattr(exporting, "_write_onnx", lambda *given: None)
                run, rows, file = KINDS[kind](folder)
                exporting.export(run, folder / "package")
            made[kind] = Exported(run, folder / "package", rows, file)
        return made[kind]

    return one


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
