"""A signal to a command that has nothing to save: it ends in order, with the code of the signal, and leaves nothing behind."""

from __future__ import annotations

import importlib
import os
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from flatout.cli.leaving import Ended, deaf_to_signals, ends_in_order
from flatout.cli.main import main
from flatout.cli.progress import progress_view

BOTH = pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129)])


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    before = {number: signal.signal(number, signal.SIG_DFL) for number in (signal.SIGTERM, signal.SIGHUP)}
    interrupt = signal.getsignal(signal.SIGINT)
    yield
    for number, handler in {**before, signal.SIGINT: interrupt}.items():
        signal.signal(number, handler)


@BOTH
def test_what_goes_on_is_unwound(number: signal.Signals, code: int) -> None:
    with pytest.raises(Ended) as ended, ends_in_order(), tempfile.TemporaryDirectory() as folder:
        try:
            os.kill(os.getpid(), number)
        finally:
            os.kill(os.getpid(), signal.SIGTERM)  # while it tidies up: once was enough
    assert ended.value.code == code and ended.value.signal_name == number.name
    assert not Path(folder).exists()


@BOTH
def test_handlers_are_the_callers_again(number: signal.Signals, code: int) -> None:
    with ends_in_order():
        assert signal.getsignal(number) is not signal.SIG_DFL
    assert signal.getsignal(number) is signal.SIG_DFL


def test_below_nohup_a_hangup_stays_ignored() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with ends_in_order():
        os.kill(os.getpid(), signal.SIGHUP)


@pytest.mark.parametrize(("name", "ended"), [("SIGTERM", Ended), ("SIGHUP", Ended), ("SIGINT", KeyboardInterrupt)])
def test_an_import_is_not_interrupted(
    name: str, ended: type[BaseException], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C++ that is being imported can't stand an error out of nowhere: the signal counts when the import is over."""
    lines = "import os, signal, time", f"os.kill(os.getpid(), signal.{name})", "time.sleep(0.2)", "whole = True"
    (tmp_path / f"imported_{name}.py").write_text("\n".join(lines))
    monkeypatch.syspath_prepend(tmp_path)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with pytest.raises(ended), ends_in_order():
        imported = importlib.import_module(f"imported_{name}")
        assert imported.whole
        time.sleep(5)
        raise AssertionError("nobody ended this")


def test_a_forked_process_ends_as_if_there_were_no_handler() -> None:
    with ends_in_order():
        pid = os.fork()
        if pid == 0:
            os.kill(os.getpid(), signal.SIGTERM)
            os._exit(3)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGTERM


def test_a_command_inside_of_another_program_leaves_its_signals_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["flatout", "--version"])
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    with pytest.raises(SystemExit):
        main()
    assert {number: signal.getsignal(number) for number in before} == before


def test_at_the_end_no_signal_counts() -> None:
    deaf_to_signals()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        os.kill(os.getpid(), number)


def test_a_quiet_run_still_answers_ctrl_c(capsys: pytest.CaptureFixture[str]) -> None:
    with progress_view(quiet=True) as (observer,):
        observer({"kind": "planning", "line": "trying compile"})
        observer({"kind": "planning", "line": "Ctrl-C: no more settings are tried"})
        observer({"kind": "step", "step": 1})
    assert capsys.readouterr().err == "Ctrl-C: no more settings are tried\n"
