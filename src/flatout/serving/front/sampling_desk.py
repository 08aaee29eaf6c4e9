"""A desk that also keeps a share of the requests and their answers. Without sampling nothing of this is in the way."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping
from functools import partial
from time import perf_counter
from typing import Any, NamedTuple, Protocol

from flatout.serving.asking import Array
from flatout.serving.front.asked_times import OnOutputs
from flatout.serving.front.desk import Desk
from flatout.serving.front.exchange import RequestExchange
from flatout.serving.front.hooks import RowHooks
from flatout.serving.front.limits import Limits
from flatout.serving.front.model_view import ModelView

_log = logging.getLogger("flatout.serving")
_LONGEST_ID = 200


class SampledRequest(NamedTuple):
    """`inputs` are columns as they came: raw ones, or the program's own tensors. `answers` are columns too."""

    view: ModelView
    is_prepared: bool
    inputs: Mapping[str, Any]
    answers: Mapping[str, Any]
    rows: int
    time_s: float  # since 1970, when it came
    duration_s: float
    id: str | None


class KeepsSamples(Protocol):
    def wants(self) -> bool:
        """Whether the next request is one to keep."""
        ...

    def keep(self, sample: SampledRequest) -> None:
        """Called in the event loop after the answer was sent: it must be quick, and never waits."""
        ...


class AnyDesk(Protocol):
    """See Desk."""

    hooks: RowHooks
    limits: Limits

    def ask_prepared(
        self,
        exchange: RequestExchange,
        view: ModelView,
        columns: Iterable[tuple[str, Array]],
        rows: int,
        sizes: tuple[int, ...],
        answer: OnOutputs,
        deadline_s: float = 0.0,
        priority: int = 0,
    ) -> None: ...

    def ask_row(self, exchange: RequestExchange, view: ModelView, row: Mapping[str, Any], answer: OnOutputs) -> None: ...

    def ask_raw(
        self,
        exchange: RequestExchange,
        view: ModelView,
        raw: Mapping[str, Any],
        answer: OnOutputs,
        deadline_s: float = 0.0,
        priority: int = 0,
    ) -> None: ...


class SamplingDesk:
    """The same three questions as those of a desk."""

    def __init__(self, desk: Desk, samples: KeepsSamples) -> None:
        self._desk, self._samples = desk, samples
        self.hooks, self.limits = desk.hooks, desk.limits

    def ask_prepared(
        self,
        exchange: RequestExchange,
        view: ModelView,
        columns: Iterable[tuple[str, Array]],
        rows: int,
        sizes: tuple[int, ...],
        answer: OnOutputs,
        deadline_s: float = 0.0,
        priority: int = 0,
    ) -> None:
        if self._samples.wants():
            columns = list(columns)
            answer = partial(self._answer, view, True, dict(columns), answer)
        self._desk.ask_prepared(exchange, view, columns, rows, sizes, answer, deadline_s, priority)

    def ask_row(self, exchange: RequestExchange, view: ModelView, row: Mapping[str, Any], answer: OnOutputs) -> None:
        if self._samples.wants():
            answer = partial(self._answer, view, False, {name: [value] for name, value in row.items()}, answer)
        self._desk.ask_row(exchange, view, row, answer)

    def ask_raw(
        self,
        exchange: RequestExchange,
        view: ModelView,
        raw: Mapping[str, Any],
        answer: OnOutputs,
        deadline_s: float = 0.0,
        priority: int = 0,
    ) -> None:
        if self._samples.wants():
            kept = raw
            if self.hooks.before is not None:  # it may change lists in place
                kept = {name: list(column) if isinstance(column, list) else column for name, column in raw.items()}
            answer = partial(self._answer, view, False, kept, answer)
        self._desk.ask_raw(exchange, view, raw, answer, deadline_s, priority)

    def _answer(
        self,
        view: ModelView,
        is_prepared: bool,
        inputs: Mapping[str, Any],
        answer: OnOutputs,
        exchange: RequestExchange,
        outputs: Mapping[str, Any],
        named: bool,
    ) -> None:
        answer(exchange, outputs, named)
        try:
            answers = outputs if named else view.columns(outputs)  # copies: the room is released next
            duration_s = perf_counter() - exchange.begun
            given = exchange.headers.get(b"x-request-id")
            name = None if given is None else given[:_LONGEST_ID].decode("latin-1")
            self._samples.keep(
                SampledRequest(view, is_prepared, inputs, answers, exchange.rows, time.time() - duration_s, duration_s, name)
            )
        except Exception:  # a sample must not break answers
            _log.exception("a request could not be sampled")
