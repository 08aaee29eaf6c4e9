"""Reports what torch.compile does: what it compiled, graph breaks, recompilations, and what it could not compile.

torch falls back to eager silently: a graph breaks at a line that the compiler can't follow, and a function that was compiled
too often is not compiled again. torch's records of each compilation show this and are the same in torch 2.11 to 2.13:
`get_compilation_metrics` (function, seconds, the guard that failed, why it gave up) and `graph_break_reasons` (the stack of the
user's code). Both are read between steps. The alternatives are worse: log handlers would have to parse text and would change
the output of `TORCH_LOGS`; counters name no lines; `fail_on_recompile_limit_hit` ends a run that could continue.

A compiler error costs speed but never ends the run: the step is tried again eagerly, from where it began.
"""

from __future__ import annotations

import os
import re
import types
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from flatout.base.events import EventLog
from flatout.engine import compile_cache
from flatout.engine.device import sync_point
from flatout.engine.settings import Settings
from flatout.engine.surroundings import read_random_state, restore_random_state

Compute = TypeVar("Compute", bound=Callable[..., Any])

_MODES = {"max-autotune": "max-autotune-no-cudagraphs", "reduce-overhead": "reduce-overhead"}
_MISSING = {  # text in a compiler error, and what to do about it
    "C++ compiler": "it needs a C++ compiler, and this machine has none that works: install g++",
    "Python.h": "it needs the Python headers, which are not installed: install python3-dev",
    "TritonMissing": "it needs Triton, which is not installed: pip install triton",
    "working triton": "it needs Triton, which is not installed: pip install triton",
}
_MOST_SAID = 5  # graph breaks that are reported one by one
_FRAME = re.compile(r'File "([^"]+)", line (\d+), in (\S+)')
_RESUMED = re.compile("^torch_dynamo_resume_in_|_at_[0-9]+$")  # torch's name for the rest of a function after a graph break
_TORCH = os.path.dirname(torch.__file__)


def compiler(how: str, shapes_vary: bool) -> Callable[[Compute], Compute]:
    mode = _MODES.get(how, "default")
    return lambda compute: torch.compile(_own_code(compute), dynamic=shapes_vary, mode=mode)  # type: ignore[return-value]


def _own_code(method: Any) -> Any:
    """torch counts compilations per code object and gives up after eight: runs of one process must not share one."""
    code, plain = method.__func__.__code__.replace(), method.__func__
    return types.MethodType(types.FunctionType(code, plain.__globals__, plain.__name__), method.__self__)


def for_all_shapes(batch: dict[str, Tensor]) -> None:
    """One compilation for all shapes. Without this mark torch assumes that sizes that are equal once are always equal."""
    for column in batch.values():
        torch._dynamo.maybe_mark_dynamic(column, list(range(column.ndim)))


class Before:
    """A copy of what a forward changes besides gradients: buffers and the random state."""

    def __init__(self, model: nn.Module, device: torch.device) -> None:
        self._device = device
        self._buffers = [(m, name, b, b.clone()) for m in model.modules() for name, b in m._buffers.items() if b is not None]
        self._random = read_random_state(device)

    @torch.no_grad()
    def put_back(self) -> None:
        for module, name, buffer, copy in self._buffers:
            module._buffers[name] = buffer.copy_(copy)
        restore_random_state(self._random, self._device)


def is_compilers(error: BaseException) -> bool:
    return isinstance(error, torch._dynamo.exc.TorchDynamoException)


def why_not(error: BaseException) -> str:
    """What could not be compiled, and where."""
    text = str(error)
    named = f"{type(error).__name__}: {text}"
    known = next((words for sign, words in _MISSING.items() if sign in named), None)
    if known is not None:
        return known
    lines = re.sub(r"^backend='\w+' raised:\n", "", text)
    of_the_user = [frame for frame in _FRAME.findall(text) if not frame[0].startswith(_TORCH)]
    place = f"{_place(*of_the_user[-1])}: " if of_the_user else ""
    return place + (_explanation(lines) or type(error).__name__)


@dataclass(frozen=True)
class News:
    """What was compiled since the last report."""

    seconds: float
    graphs: int
    cached: int  # forwards and backwards found in a cache
    built: int  # forwards and backwards that were compiled
    breaks: tuple[str, ...]  # graph breaks
    recompiles: tuple[str, ...]  # the guards that failed
    eager: tuple[str, ...]  # functions that the compiler no longer compiles


class CompileWatch:
    """What this process compiled since the last call of `news`."""

    def __init__(self) -> None:
        from torch._dynamo import utils

        self._torch: Any = utils
        self._last: Any = None
        self._broken = 0
        self._functions: dict[str, str] = {}
        self.news()

    def news(self) -> News | None:
        compiled, breaks = self._compiled(), self._breaks()
        if not compiled:
            return None
        for one in compiled:
            if one.co_name:
                self._functions[_function_id(one)] = _place(one.co_filename, one.co_firstlineno, one.co_name)
        eager = {self._where(one): _given_up(one) for one in compiled if one.fail_type}
        again = [one for one in compiled if one.recompile_reason and not one.fail_type]
        return News(
            seconds=sum(one.duration_us or 0 for one in compiled) / 1e6,
            graphs=sum(bool(one.is_forward and one.graph_op_count) for one in compiled),
            cached=sum(one.inductor_fx_local_cache_hit_count or 0 for one in compiled),
            built=sum(one.inductor_fx_local_cache_miss_count or 0 for one in compiled),
            breaks=tuple(f"{place}: {why}" for place, why in breaks.items() if place not in eager),
            recompiles=tuple(f"{self._where(one)}: {_guard(one.recompile_reason)}" for one in again),
            eager=tuple(f"{place}: {why}" for place, why in eager.items()),
        )

    def _breaks(self) -> dict[str, str]:
        """Reasons by line. A break also breaks every calling function, and torch gives the full reason only the first time."""
        reasons: list[Any] = self._torch.graph_break_reasons
        new = reasons[self._broken if self._broken <= len(reasons) else 0 :]  # torch._dynamo.reset() empties the list
        self._broken = len(reasons)
        found: dict[str, str] = {}
        for reason in new:
            for frame in reason.user_stack[-1:]:
                found.setdefault(_place(frame.filename, frame.lineno, frame.name), _explanation(reason.reason))
        return found

    def _compiled(self) -> list[Any]:
        kept: list[Any] = self._torch.get_compilation_metrics()  # the last 64 of them
        seen = next((place for place, one in enumerate(kept) if one is self._last), -1)
        self._last = kept[-1] if kept else None
        return kept[seen + 1 :]

    def _where(self, one: Any) -> str:
        """The line of the user's code; if torch does not say, the function that was compiled."""
        stack = _FRAME.findall(one.recompile_reason or "")
        if stack:
            return _place(*stack[-1])
        if one.fail_user_frame_filename:
            return _place(one.fail_user_frame_filename, one.fail_user_frame_lineno, one.co_name)
        return self._functions.get(_function_id(one), "a function that torch does not name")


class Compiling:
    """Reports what the compiler does while a run trains, and saves compiled code in the run's folder."""

    def __init__(self, settings: Settings, folder: Path, events: EventLog) -> None:
        """Made before anything is compiled: loads what an earlier part of this run has compiled."""
        self._events = events
        self._said: set[str] = set()
        self._kept = compile_cache.CompiledFiles(folder, compile_cache.made_for(settings))
        self._watch = CompileWatch()
        if (why := self._kept.load()) is not None:
            self._say("compile cache", [f"everything is compiled again: {why}"])

    def report(self, step: int) -> None:
        """Emits an event for what was compiled since the last call, and one for each thing that costs speed."""
        news = self._watch.news()
        if news is None:
            return
        if news.graphs:
            self._events.emit("compiled", step=step, **_fields(news))
            self._keep(news)
        self._say("compile", news.eager)
        self._say("compile", _first(news.breaks))

    def give_up(self, why: str) -> None:
        """The step runs eagerly from here on."""
        said = f"the step can't be compiled and runs eagerly, as with --off compile: {why}"
        self._events.emit("degraded", what="compile", value="off", why=said)
        self._watch.news()  # drops what led to this: `why` says it

    def _say(self, what: str, reasons: Iterable[str]) -> None:
        for why in reasons:
            if why not in self._said:
                self._said.add(why)
                self._events.emit("degraded", what=what, why=why)

    def _keep(self, news: News) -> None:
        if not news.built and self._kept.loaded:  # everything came from the saved files
            return
        with sync_point():
            why = self._kept.save()
        if why is not None:
            self._say("compile cache", [f"a resumed run compiles again: {why}"])


def _fields(news: News) -> dict[str, Any]:
    return {
        "seconds": round(news.seconds, 3),
        "graphs": news.graphs,
        "cached": news.cached,
        "breaks": list(news.breaks),
        "recompiles": list(news.recompiles),
    }


def _first(breaks: tuple[str, ...]) -> Iterator[str]:
    for where in breaks[:_MOST_SAID]:
        yield f"graph break: this line runs in Python: {where}"
    if len(breaks) > _MOST_SAID:
        yield f"{len(breaks) - _MOST_SAID} more graph breaks: the event compiled lists them all"


def _given_up(one: Any) -> str:
    if "limit exceeded" in (one.fail_reason or ""):
        times = str(one.compile_id).partition("/")[2]
        return (
            f"compiled {times} times and no more, other cases run eagerly; "
            f"the last time {_guard(one.recompile_reason)}. "
            "Keep values that change from step to step in a tensor or out of the model, or --off compile"
        )
    return f"this function runs eagerly: {_explanation(one.fail_reason or '')}"


def _guard(reason: str | None) -> str:
    """`0/3: self.model.calls == 7   # code  # file` and a stack -> the assumption that failed."""
    first = re.sub(r"^\d+/\S+: ", "", (reason or "").strip()).partition("\n")[0]
    condition = re.split(r"\s+# ", first)[0].strip()
    if not condition:
        return "torch does not say why"
    return condition if "mismatch" in condition else f"{condition} no longer held"


def _explanation(reason: str) -> str:
    """torch's explanation, without its hints for torch developers."""
    found = re.search(r"^\s*Explanation: (.+)$", reason, re.MULTILINE)
    line = found[1] if found else next((line for line in reason.splitlines() if line.strip()), "")
    return line.strip()


def _function_id(one: Any) -> str:
    return str(one.compile_id).partition("/")[0]


def _place(file: str, line: int | str, function: str) -> str:
    here = os.path.relpath(file) if file.startswith(os.getcwd() + os.sep) else file
    return f"{here}:{line} in {_RESUMED.sub('', function)}"
