"""What `fo.run` shows: a line in a terminal, a live cell in a notebook, nothing elsewhere."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

import flatout as fo
from flatout.base.errors import MissingExtra, UsageError
from flatout.notebook.live_cell import LiveCell
from flatout.runs.plotting import plot_events

RUN: dict[str, Any] = {
    "model": "mlp", "objective": "classify", "batch": 16, "lr": 1e-2, "budget": "3 epochs", "settings": {"device": "cpu"},
    "planning": "off", "fresh": True,
}  # fmt: skip


@pytest.fixture(autouse=True)
def _desk(desk: Path) -> None:
    """Nothing is measured; runs are in the test's folder."""


def rows() -> Any:
    random = np.random.default_rng(0)
    x = random.normal(size=(96, 4)).astype(np.float32)
    return fo.data.arrays(x, (x[:, 0] > 0).astype(np.int64), holdout=0.2)


class Shell:
    """What a kernel's shell and display look like to a library."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, kernel: bool) -> None:
        self.pages: list[str] = []
        package, display = ModuleType("IPython"), ModuleType("IPython.display")
        shell = SimpleNamespace(kernel=object()) if kernel else SimpleNamespace()
        package.get_ipython = lambda: shell  # type: ignore[attr-defined]
        display.HTML = str  # type: ignore[attr-defined]
        display.display = lambda page, display_id: SimpleNamespace(update=self.pages.append)  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "IPython", package)
        monkeypatch.setitem(sys.modules, "IPython.display", display)


def test_a_notebook_gets_a_live_cell(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    shell = Shell(monkeypatch, kernel=True)
    seen: list[str] = []
    run = fo.run(data=rows(), **RUN, observers=[lambda event: seen.append(event["kind"])])
    assert "planning" in shell.pages[0] and "<svg" in shell.pages[-1] and "width:100%" in shell.pages[-1]
    assert "accuracy" in shell.pages[-1] and run.name in shell.pages[-1]
    assert "step" in seen, "observers are still told"
    assert capsys.readouterr() == ("", "")


def test_a_drafted_recipe_is_shown_in_the_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    shell = Shell(monkeypatch, kernel=True)
    fo.run(data=rows(), budget="2 steps", settings={"device": "cpu"}, planning="off", fresh=True)
    assert "objective: binary" in shell.pages[-1]


def test_quiet_says_nothing(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    shell = Shell(monkeypatch, kernel=True)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    fo.run(data=rows(), **RUN, quiet=True)
    assert not shell.pages and capsys.readouterr() == ("", "")


def test_neither_terminal_nor_notebook_says_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shell = Shell(monkeypatch, kernel=False)  # IPython in a pipe
    fo.run(data=rows(), **RUN)
    assert not shell.pages and capsys.readouterr() == ("", "")


def test_a_terminal_gets_a_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    fo.run(data=rows(), **RUN)
    printed = capsys.readouterr()
    assert "accuracy" in printed.err and not printed.out


@pytest.mark.parametrize("quiet", [True, False])
def test_ctrl_c_during_planning_is_answered(quiet: bool, capsys: pytest.CaptureFixture[str]) -> None:
    from flatout.notebook.speaking import speaking
    from flatout.plan.trials.reports import CTRL_C

    with speaking(quiet) as views:
        for view in views:
            view({"kind": "planning", "line": "trying compile=on", "t": 0.0})
            view({"kind": "planning", "line": f"{CTRL_C}trials stopped; press it again to stop", "t": 0.0})
    assert capsys.readouterr().err == f"{CTRL_C}trials stopped; press it again to stop\n"


def test_an_end_while_planning_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    def interrupt(event: Any) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fo.run(data=rows(), budget="2 steps", settings={"device": "cpu"}, fresh=True, observers=[interrupt])
    assert "no step was trained" in capsys.readouterr().err and not Path("runs").exists()


def test_a_cell_is_safe_and_small() -> None:
    pages: list[str] = []
    cell = LiveCell(pages.append)
    cell({"kind": "planning", "line": "<script>alert(1)</script>", "t": 0.0})
    assert "<script>" not in pages[-1] and "&lt;script&gt;" in pages[-1]
    for step in range(20_000):
        loss = float("nan") if step % 7 == 0 else 1 / (step + 1)
        cell({"kind": "step", "t": step / 100, "step": step, "samples": step, "done": step / 20_000, "loss": loss,
              "samples_per_s": 10.0, "memory_bytes": 1})  # fmt: skip
    cell.close()
    assert len(pages[-1]) < 20_000 and "nan," not in pages[-1]


def test_plot() -> None:
    run = fo.run(data=rows(), **RUN)
    if importlib.util.find_spec("matplotlib") is None:
        with pytest.raises(MissingExtra, match=r"flatout\[plot\]"):
            run.plot()
        pytest.skip("matplotlib is not installed")
    figure = run.plot()
    assert figure.axes[0].get_ylabel() == "loss" and len(figure.axes) == 2


def test_a_run_without_steps_has_no_plot() -> None:
    with pytest.raises(UsageError, match="no step"):
        plot_events([], "mlp-1")
