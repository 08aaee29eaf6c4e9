"""One small classifier, trained and exported once for all tests of this folder."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from listed_operators import listed_once

import flatout as fo
from flatout.packaging.export import export
from flatout.packaging.own_data import data_behind
from flatout.packaging.package import Package, open_package
from flatout.shrinking.rows import RowSets, rows_of_run
from flatout.shrinking.workshop.workshop import Workshop


@pytest.fixture(scope="session")
def timed_operators(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Each training plans with the times of its operators, which are measured once for all tests."""
    return tmp_path_factory.mktemp("operators")


@pytest.fixture(autouse=True)
def one_thread(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, timed_operators: Path) -> Iterator[None]:
    monkeypatch.setenv("FLATOUT_CACHE", str(timed_operators))
    monkeypatch.chdir(tmp_path)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    """Stripes of four directions with noise: easy for convolutions, with 1,500 held-out rows."""
    random = np.random.default_rng(0)
    y = random.integers(0, 4, 3000)
    high, wide = np.meshgrid(np.arange(8), np.arange(8), indexing="ij")
    waves = np.stack([np.sin(place * 1.5) for place in (high, wide, high + wide, high - wide)])
    x = (waves[y] * 90 + 128 + random.normal(0, 90, (3000, 8, 8))).clip(0, 255).astype(np.uint8)
    file = tmp_path_factory.mktemp("data") / "pictures.npz"
    np.savez(file, x=x, y=y)
    return {"arrays": str(file), "normalize": "auto", "holdout": 0.5}


@pytest.fixture(scope="session", autouse=True)
def operators_listed_once() -> Iterator[None]:
    with listed_once():
        yield


@pytest.fixture(scope="session")
def run(pictures: dict[str, object], timed_operators: Path, tmp_path_factory: pytest.TempPathFactory) -> fo.Run:
    folder = tmp_path_factory.mktemp("runs")
    recipe = fo.Recipe(
        data=pictures, model={"convnet": {"channels": [8, 16], "hidden": 128}}, batch=64, lr=1e-2, budget="60 steps",
        evaluate=None, settings={"device": "cpu"},
    )  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FLATOUT_CACHE", str(timed_operators))
        return fo.run(recipe, runs=folder, cache=None, planning="off")


@pytest.fixture(scope="session")
def package(run: fo.Run, tmp_path_factory: pytest.TempPathFactory) -> Package:
    """Its files must not be changed."""
    folder = tmp_path_factory.mktemp("exported") / "package"
    export(run, folder)
    return open_package(folder)


@pytest.fixture(scope="session")
def rows(package: Package) -> RowSets:
    return rows_of_run(package, data_behind(package, None))


@pytest.fixture
def workshop(package: Package, rows: RowSets) -> Iterator[Workshop]:
    with Workshop(package, rows, "classify", isolated=False) as made:
        made.serve_with("onnxruntime")
        yield made


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """`command("shrink", "last")` -> exit code, stdout, stderr."""
    from flatout.cli.main import main

    def called(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["flatout", *map(str, arguments)])
        capsys.readouterr()
        code: object = 0
        try:
            main()
        except SystemExit as ended:
            code = ended.code
        printed = capsys.readouterr()
        return int(str(code or 0)), printed.out, printed.err

    return called


@pytest.fixture(scope="session", autouse=True)
def in_no_folder_of_the_checkout(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    before = os.getcwd()
    os.chdir(tmp_path_factory.mktemp("here"))
    yield
    os.chdir(before)
