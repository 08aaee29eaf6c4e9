"""`fo.run(..., on={"evaluation": f})`: functions of the user's own that are called at events of a run."""

from __future__ import annotations

import inspect
import traceback
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from flatout.base.errors import UsageError, did_you_mean
from flatout.base.events import KINDS, Event
from flatout.runs.record import Run
from flatout.store.run_folder import RunFolder

OwnFunction = Callable[[dict[str, Any], Run], object]


class OwnFunctions:
    """An observer. What a function raises is a warning with its line, once for each line; the run and the function go on."""

    def __init__(self, on: Mapping[str, OwnFunction], runs: Path) -> None:
        for kind, function in on.items():
            _check(kind, function)
        self._on, self._runs, self._run = dict(on), runs, None
        self._warned: set[str] = set()

    _run: Run | None

    def __call__(self, event: Event) -> None:
        if event["kind"] == "planned":
            self._run = Run(RunFolder(self._runs / event["run"]))
        function = self._on.get(event["kind"])
        if function is None or self._run is None:
            return
        try:
            function(dict(event), self._run)
        except Exception as error:
            self._warn(event["kind"], error)

    def _warn(self, kind: str, error: Exception) -> None:
        frames = traceback.extract_tb(error.__traceback__)[1:]  # the first is the call above
        at = f'{frames[-1].filename}", line {frames[-1].lineno}' if frames else "unknown"
        what = f'on["{kind}"] failed: {type(error).__name__}: {error} (File "{at}); the run goes on'
        if at not in self._warned:
            self._warned.add(at)
            warnings.warn(what, stacklevel=2)


def _check(kind: str, function: OwnFunction) -> None:
    if kind not in KINDS:
        raise UsageError(f"on: there is no event {kind!r}; {did_you_mean(str(kind), KINDS)}")
    if not callable(function):
        raise UsageError(f"on[{kind!r}] must be a function of the event and the run, got {type(function).__name__}")
    try:
        inspect.signature(function).bind({}, None)
    except TypeError as error:
        raise UsageError(f"on[{kind!r}] must take two arguments, f(event, run): {error}") from None
    except ValueError:
        pass  # a builtin that does not say what it takes
