"""A desk that notes what one version predicts while a canary is judged, and names each answer so that it can be labelled."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import numpy as np

from flatout.serving.asking import Array
from flatout.serving.canary import tally
from flatout.serving.canary.answer_ids import AnswerIds
from flatout.serving.front.asked_times import OnOutputs
from flatout.serving.front.exchange import CANARY, STABLE, UNTIMED, RequestExchange
from flatout.serving.front.model_view import ModelView
from flatout.serving.front.sampling_desk import AnyDesk

AskAgain = Callable[[AnyDesk, RequestExchange, ModelView, OnOutputs], None]
Copies = Callable[[Mapping[str, Array], AskAgain], None]


class JudgedDesk:
    """The same three questions as those of a desk. `counts` is the tally of the version; `edges` cut numbers into bins.

    `copies` gets the outputs of each request and a way to ask the same of another version.
    """

    def __init__(self, desk: AnyDesk, counts: Array, edges: Array | None, ids: AnswerIds, copies: Copies | None = None) -> None:
        self._desk, self._counts, self._edges, self._ids, self._copies = desk, counts, edges, ids, copies
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
        again: AskAgain | None = None
        if self._copies is not None:
            columns = [(name, np.array(column)) for name, column in columns]
            again = partial(_prepared_again, columns, rows, sizes)
        answer = partial(self._answer, view, again, answer)
        self._desk.ask_prepared(exchange, view, columns, rows, sizes, answer, deadline_s, priority)

    def ask_row(self, exchange: RequestExchange, view: ModelView, row: Mapping[str, Any], answer: OnOutputs) -> None:
        again: AskAgain | None = None if self._copies is None else partial(_row_again, dict(row))
        self._desk.ask_row(exchange, view, row, partial(self._answer, view, again, answer))

    def ask_raw(
        self,
        exchange: RequestExchange,
        view: ModelView,
        raw: Mapping[str, Any],
        answer: OnOutputs,
        deadline_s: float = 0.0,
        priority: int = 0,
    ) -> None:
        again: AskAgain | None = None
        if self._copies is not None:
            kept = {name: list(column) if isinstance(column, list) else column for name, column in raw.items()}
            again = partial(_raw_again, kept)
        self._desk.ask_raw(exchange, view, raw, partial(self._answer, view, again, answer), deadline_s, priority)

    def _answer(
        self,
        view: ModelView,
        again: AskAgain | None,
        answer: OnOutputs,
        exchange: RequestExchange,
        outputs: Mapping[str, Any],
        named: bool,
    ) -> None:
        predictions = outputs.get("prediction")
        if isinstance(predictions, np.ndarray) and predictions.ndim == 1 and exchange.arm in (STABLE, CANARY, UNTIMED):
            first = float(predictions[0])
            place = bin_of(first, self._edges)
            if place is not None:
                self._counts[tally.PREDICTED.start + place] += 1
            if exchange.rows == 1:
                name = self._ids.name(CANARY if exchange.arm == CANARY else STABLE, first)
                exchange.feedback_id, exchange.head = b"x-flatout-id: %b\r\n" % name, None  # known heads have no place for it
        kept = None if again is None or named else {name: np.array(outputs[name]) for name in outputs}
        answer(exchange, outputs, named)
        if kept is not None and again is not None and self._copies is not None:
            self._copies(kept, again)


def bin_of(prediction: float, edges: Array | None) -> int | None:
    """The bin that a prediction is counted in: that of its number if there are no edges; None if there is none for it."""
    if prediction != prediction:
        return None
    place = int(prediction) if edges is None else int(np.searchsorted(edges, prediction))
    return place if 0 <= place < tally.CLASSES else None


def _prepared_again(
    columns: Any,
    rows: int,
    sizes: tuple[int, ...],
    desk: AnyDesk,
    exchange: RequestExchange,
    view: ModelView,
    answer: OnOutputs,
) -> None:
    desk.ask_prepared(exchange, view, columns, rows, sizes, answer)


def _row_again(row: Mapping[str, Any], desk: AnyDesk, exchange: RequestExchange, view: ModelView, answer: OnOutputs) -> None:
    desk.ask_row(exchange, view, row, answer)


def _raw_again(raw: Mapping[str, Any], desk: AnyDesk, exchange: RequestExchange, view: ModelView, answer: OnOutputs) -> None:
    desk.ask_raw(exchange, view, raw, answer)
