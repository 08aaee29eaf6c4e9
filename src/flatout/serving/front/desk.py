"""From raw rows to named answers: hooks, preparation, the question to an executor."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from time import perf_counter
from typing import Any

import numpy as np

from flatout.serving.asking import Array, Asking, Outcome, Room, Status
from flatout.serving.drift.sampling import DriftSampling
from flatout.serving.front.aside import AsideThreads, TookTooLong
from flatout.serving.front.asked_times import OnOutputs, asked_deadline, asked_priority
from flatout.serving.front.exchange import RequestExchange
from flatout.serving.front.hooks import RowHooks, RowsHook, header_texts
from flatout.serving.front.limits import Limits
from flatout.serving.front.model_view import ModelView
from flatout.serving.front.packed_columns import PackedColumns
from flatout.serving.front.refusals import Refusal, one_line, refusal_of
from flatout.serving.photo_files import head_of
from flatout.serving.records import open_sizes

_THREADS = 4
_ANSWERED = Status.ANSWERED
_MANY_ROWS = 2048  # preparing more would keep other connections waiting for milliseconds


class Desk:
    """`answer` gets the outputs: views of the room without class names, or named columns (True) that `after` returned."""

    def __init__(self, asking: Asking, hooks: RowHooks, limits: Limits, drift: DriftSampling | None = None) -> None:
        self._drift = drift
        self._asking, self.hooks, self.limits = asking, hooks, limits
        self._after = hooks.after
        self._hook_threads = AsideThreads("flatout-hook", _THREADS)
        self._preparing_threads = AsideThreads("flatout-prepare", 1)

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
        if self._after is not None:
            answer = partial(self._then_after, view, self._after, answer)
        exchange.model, exchange.rows = view.model, rows
        headers = exchange.headers
        if b"x-flatout-deadline-ms" in headers or b"x-flatout-priority" in headers:
            deadline_s, priority = asked_deadline(headers, deadline_s), asked_priority(headers, priority)
        asking = self._asking
        room = asking.room(view.model, rows, sizes)
        try:
            if isinstance(columns, PackedColumns) and columns.records is not None:
                room.write(columns.records)
            else:
                inputs = room.inputs
                for name, column in columns:
                    inputs[name][...] = column
            if self._drift is not None and self._drift.wants():
                self._drift.keep(view.model.package, room.inputs)
            exchange.decoded = perf_counter()
            asking.ask(room, partial(_done, exchange, room, answer), deadline_s=deadline_s, priority=priority)
        except BaseException:
            room.release()
            raise

    def ask_row(self, exchange: RequestExchange, view: ModelView, row: Mapping[str, Any], answer: OnOutputs) -> None:
        """One row of a table, as {"age": 39, ...}."""
        if self.hooks.before is None:
            prepared = view.preparer.row(row)
            if isinstance(prepared, PackedColumns):
                self.ask_prepared(exchange, view, prepared, 1, (), answer)
            else:
                self._ask(exchange, view, prepared, answer)
        else:
            self.ask_raw(exchange, view, {name: [value] for name, value in row.items()}, answer)

    def ask_raw(
        self,
        exchange: RequestExchange,
        view: ModelView,
        raw: Mapping[str, Any],
        answer: OnOutputs,
        deadline_s: float = 0.0,
        priority: int = 0,
    ) -> None:
        """Columns by name."""
        then = partial(self._prepare, exchange, view, answer=answer, deadline_s=deadline_s, priority=priority)
        if self.hooks.before is None:
            then(raw)
        else:
            exchange.model = view.model
            self._hooked(exchange, "before", self.hooks.before, dict(raw), lambda rows: then(_raw_rows(rows)))

    def _prepare(
        self, exchange: RequestExchange, view: ModelView, raw: Any, answer: OnOutputs, deadline_s: float, priority: int
    ) -> None:
        if not (view.model.takes_files and self._ask_file(exchange, view, raw, answer, deadline_s, priority)):
            self._prepare_here(exchange, view, raw, answer, deadline_s, priority)

    def _prepare_here(
        self, exchange: RequestExchange, view: ModelView, raw: Any, answer: OnOutputs, deadline_s: float, priority: int
    ) -> None:
        if not _is_much(view, raw):
            self._ask(exchange, view, view.preparer.rows(raw), answer, deadline_s, priority)
            return

        def done(prepared: Any, error: Exception | None) -> None:
            if error is not None:
                exchange.fail(error)
            else:
                exchange.guarded(lambda: self._ask(exchange, view, prepared, answer, deadline_s, priority))

        exchange.model = view.model
        self._preparing_threads.run(partial(view.preparer.rows, raw), done)

    def _ask_file(
        self, exchange: RequestExchange, view: ModelView, raw: Any, answer: OnOutputs, deadline_s: float, priority: int
    ) -> bool:
        """One photo as it came, for the executor to decode. False if the front has to: it has several, or another kind. One
        that can't be decoded there is decoded here after all: what is wrong with it is said in the same words."""
        photos = raw.get("photo") if isinstance(raw, Mapping) else None
        if not isinstance(photos, list) or len(photos) != 1 or not isinstance(photos[0], bytes):
            return False
        head = head_of(photos[0], view.cover)
        if head is None:
            return False
        then_answer = answer if self._after is None else partial(self._then_after, view, self._after, answer)
        exchange.model, exchange.rows = view.model, 1
        asked_s, first = asked_deadline(exchange.headers, deadline_s), asked_priority(exchange.headers, priority)
        room = self._asking.file_room(view.model, len(head) + len(photos[0]))

        def done(outcome: Outcome) -> None:
            if outcome.status is Status.FAILED:
                room.release()
                exchange.guarded(lambda: self._prepare_here(exchange, view, raw, answer, deadline_s, priority))
            else:
                _done(exchange, room, then_answer, outcome)

        try:
            room.write(head, photos[0])
            exchange.decoded = perf_counter()
            self._asking.ask(room, done, deadline_s=asked_s, priority=first)
        except BaseException:
            room.release()
            raise
        return True

    def _ask(
        self,
        exchange: RequestExchange,
        view: ModelView,
        prepared: Mapping[str, Array],
        answer: OnOutputs,
        deadline_s: float = 0.0,
        priority: int = 0,
    ) -> None:
        rows = len(next(iter(prepared.values())))
        sizes = open_sizes(view.model.inputs, prepared) if view.has_open_sizes else ()
        self.ask_prepared(exchange, view, prepared.items(), rows, sizes, answer, deadline_s, priority)

    def _then_after(
        self, view: ModelView, hook: RowsHook, answer: OnOutputs, exchange: RequestExchange, outputs: Mapping[str, Any], _: bool
    ) -> None:
        columns = view.columns(outputs)

        def then(changed: Any) -> None:
            answer(exchange, _checked(changed, exchange.rows), True)

        self._hooked(exchange, "after", hook, columns, then)

    def _hooked(self, exchange: RequestExchange, name: str, hook: RowsHook, given: Any, then: Callable[[Any], None]) -> None:
        start = perf_counter()

        def done(result: Any, error: Exception | None) -> None:
            exchange.hook_s += perf_counter() - start
            if exchange.computed:
                exchange.computed = perf_counter()
            if isinstance(error, TookTooLong):
                exchange.refuse(Refusal(504, f"the hook {name!r} took longer than {self.limits.hook_s:g} s"))
            elif isinstance(error, Refusal):
                exchange.refuse(error)
            elif error is not None:
                exchange.refuse(Refusal(500, f"the hook {name!r} failed: {one_line(error)}"))
            else:
                exchange.guarded(lambda: then(result), f"what the hook {name!r} returned")

        headers = header_texts(exchange.headers)
        self._hook_threads.run(partial(hook, given, headers), done, self.limits.hook_s)


def _done(exchange: RequestExchange, room: Room, answer: OnOutputs, outcome: Outcome) -> None:
    """`answer` gets outputs that are valid until it returns, and False: they have no class names yet."""
    exchange.computed = perf_counter()
    exchange.timing = outcome.timing
    try:
        if outcome.status == _ANSWERED:
            answer(exchange, outcome.outputs, False)
        else:
            exchange.refuse(refusal_of(outcome))
    except Exception as error:
        exchange.fail(error)
    finally:
        room.release()


def _is_much(view: ModelView, raw: Any) -> bool:
    if not isinstance(raw, Mapping):
        return True
    most = 1 if view.kind == "photos" else _MANY_ROWS
    return any(isinstance(column, list | tuple | np.ndarray) and len(column) > most for column in raw.values())


def _raw_rows(changed: Any) -> Any:
    if not isinstance(changed, Mapping) or not changed:
        raise Refusal(500, f"the hook 'before' has to return columns by name, got {type(changed).__name__}")
    return changed


def _checked(changed: Any, rows: int) -> Mapping[str, Any]:
    """Columns that a hook returned: as many rows as before, numbers as arrays, texts as lists."""
    if not isinstance(changed, Mapping) or not changed:
        raise Refusal(500, f"the hook 'after' has to return columns by name, got {type(changed).__name__}")
    found: dict[str, Any] = {}
    for name, column in changed.items():
        array = np.asarray(column)
        if array.ndim == 0 or len(array) != rows:
            came = "one value" if array.ndim == 0 else f"{len(array)}"
            raise Refusal(500, f"the hook 'after' has to return {rows} rows of {name!r}, got {came}")
        found[str(name)] = array if array.dtype.kind in "buif" else [str(value) for value in array.tolist()]
    return found
