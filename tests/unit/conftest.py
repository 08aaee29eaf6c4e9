"""Commands of `flatout` as a person types them, run in this process, on a machine whose speed is made up."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import RECIPE, Answer, Command, table


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder a person works in: table.yaml and train.npz; nothing is measured and nothing is kept outside of it."""
    import torch

    from flatout.machine.ceilings import Ceilings, MeasuredRate
    from flatout.plan import make as planned

    made_up = Ceilings("cpu", {"fp32": MeasuredRate(1e11, 1e11, 1e11, 5)}, launch_s=MeasuredRate(2e-6, 2e-6, 2e-6, 5))
    monkeypatch.setattr(planned, "ceilings_of", lambda device, cache, job=None: made_up)
    monkeypatch.setenv("FLATOUT_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    (tmp_path / "table.yaml").write_text(RECIPE)
    np.savez(tmp_path / "train.npz", **table())
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # steps this small wait for each other's threads longer than they compute
    yield tmp_path
    torch.set_num_threads(threads)


@pytest.fixture
def flatout(desk: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """`flatout("run", "table.yaml")` -> exit code, stdout, stderr."""
    from flatout.cli.main import main

    def command(*arguments: str) -> Answer:
        monkeypatch.setattr(sys, "argv", ["flatout", *arguments])
        capsys.readouterr()
        try:
            main()
            code: Any = 0
        except SystemExit as ended:
            code = ended.code
        printed = capsys.readouterr()
        return Answer(int(code or 0), printed.out, printed.err)

    return command


@pytest.fixture
def during_run(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[Any], None] | None], None]:
    """Something that happens while a run trains: called with each of its events. None: nothing happens any more."""
    from flatout.cli import progress

    plain = progress.progress_view

    def happens(what: Callable[[Any], None] | None) -> None:
        @contextmanager
        def view(quiet: bool = False) -> Iterator[tuple[Any, ...]]:
            with plain(quiet) as observers:
                yield (*observers, what)

        monkeypatch.setattr(progress, "progress_view", plain if what is None else view)

    return happens
