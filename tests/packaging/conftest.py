"""Runs are trained and exported once for all tests of this folder; tests that change a package copy it."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from packaged_runs import KINDS, Exported

WITH_ONNX = ("classes_table", "several")  # the conversion takes most of the time of an export


@pytest.fixture(autouse=True)
def one_thread_and_few_timings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    from flatout.packaging import package

    monkeypatch.setenv("FLATOUT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(package, "SIZES", (1, 2))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Exported]:
    """By the name of a kind. Packages of it must not be changed."""
    from flatout.packaging import export as exporting

    made: dict[str, Exported] = {}

    def one(kind: str) -> Exported:
        if kind not in made:
            folder = tmp_path_factory.mktemp(kind)
            with pytest.MonkeyPatch.context() as patch:
                patch.chdir(folder)
                if kind not in WITH_ONNX:
                    patch.setattr(exporting, "_write_onnx", lambda *given: None)
                run, rows, file = KINDS[kind](folder)
                exporting.export(run, folder / "package")
            made[kind] = Exported(run, folder / "package", rows, file)
        return made[kind]

    return one


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """`command("why", "package")` -> exit code, stdout, stderr."""
    from flatout.cli.main import main

    def run(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["flatout", *map(str, arguments)])
        capsys.readouterr()
        code: object = 0
        try:
            main()
        except SystemExit as ended:
            code = ended.code
        printed = capsys.readouterr()
        return int(str(code or 0)), printed.out, printed.err

    return run


@pytest.fixture(scope="session", autouse=True)
def in_no_folder_of_the_checkout(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    before = os.getcwd()
    os.chdir(tmp_path_factory.mktemp("here"))
    yield
    os.chdir(before)
