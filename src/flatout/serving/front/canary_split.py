"""Requests of one model shared between the stable version and its canary, or copied to a shadow."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from time import perf_counter
from typing import Any

import numpy as np
import orjson

from flatout.serving.asking import Array
from flatout.serving.canary import tally
from flatout.serving.canary.answer_ids import AnswerIds
from flatout.serving.front.exchange import CANARY, STABLE, UNTIMED, RequestExchange
from flatout.serving.front.judged_desk import AskAgain, JudgedDesk
from flatout.serving.front.model_view import ModelView
from flatout.serving.front.oip import OipInfer
from flatout.serving.front.predict import Predict
from flatout.serving.front.refusals import Refusal
from flatout.serving.front.sampling_desk import AnyDesk

_MOST_COPIES = 64  # under way; a shadow that is slower gets a part of the requests
_SAME = 1e-3  # relative: numbers that differ by less are the same answer


@dataclass(frozen=True)
class SplitRule:
    """What the supervisor says: which version of which model is the canary, and who gets it. `key` is header:NAME or
    column:NAME: requests with the same value stay with one version."""

    name: str
    version: str
    share: float
    secret: bytes
    key: str | None
    patience_s: float
    shadow: bool
    edges: tuple[float, ...] | None

    @classmethod
    def from_json(cls, written: Mapping[str, Any]) -> SplitRule:
        edges = written["edges"]
        return cls(**{**written, "secret": bytes.fromhex(written["secret"]), "edges": None if edges is None else tuple(edges)})


class VersionDesk:
    """One version, for every protocol."""

    def __init__(self, desk: JudgedDesk, view: ModelView) -> None:
        self.predict, self.infer = Predict(desk, view).predict, OipInfer(desk, view)


AskVersion = Callable[[VersionDesk, RequestExchange], None]


class CanarySplit:
    """`arms` are the tallies of both versions. `control` is the stable version in a process that gets as many requests as the
    canary: times are compared with its, since a process with fewer requests is faster."""

    def __init__(
        self,
        desk: AnyDesk,
        stable: ModelView,
        canary: ModelView,
        rule: SplitRule,
        arms: Array,
        control: ModelView | None = None,
    ) -> None:
        self._rule, self._plain, self._canary_view, self._arm = rule, desk, canary, arms[1]
        edges = None if rule.edges is None else np.array(rule.edges)
        ids = AnswerIds(rule.secret)
        copies = self._copy if rule.shadow else None
        self._stable = VersionDesk(JudgedDesk(desk, arms[0], edges, ids, copies), stable)
        self._canary = VersionDesk(JudgedDesk(desk, arms[1], edges, ids), canary)
        self._control = None if control is None else VersionDesk(JudgedDesk(desk, arms[0], edges, ids), control)
        self._edges, self._copies = edges, 0

    def predict(self, exchange: RequestExchange) -> None:
        self.shared(exchange, lambda version, given: version.predict(given))

    def infer(self, exchange: RequestExchange) -> None:
        self.shared(exchange, lambda version, given: version.infer.infer(given))

    def shared(self, exchange: RequestExchange, ask: AskVersion) -> None:
        """Whatever the canary or the control does not answer, the stable version answers."""
        rule, control = self._rule, self._control
        place = 1.0 if rule.shadow else self._place(exchange)
        if place < rule.share:
            asked, exchange.arm = self._canary, CANARY
        elif control is not None and place < 2 * rule.share:
            asked, exchange.arm = control, STABLE
        else:
            exchange.arm = STABLE if control is None else UNTIMED
            ask(self._stable, exchange)
            return
        exchange.instead = partial(ask, self._stable)
        asyncio.get_running_loop().call_later(rule.patience_s, _too_late, exchange)
        exchange.guarded(lambda: ask(asked, exchange))

    def _place(self, exchange: RequestExchange) -> float:
        """From 0 to 1: the same for the same key, and different for the next deployment."""
        key = _key_of(exchange, self._rule.key)
        if key is None:
            return random.random()
        return int.from_bytes(blake2b(key, digest_size=8, key=self._rule.secret[:16]).digest()) / 2**64

    def _copy(self, outputs: Mapping[str, Array], ask: AskAgain) -> None:
        """To the shadow; its answer is compared and goes nowhere."""
        if self._copies >= _MOST_COPIES:
            self._arm[tally.NOT_COPIED] += 1
            return
        self._copies += 1

        def done(failed: bool, copy: ShadowCopy) -> None:
            self._copies -= 1
            tally.add_requests(self._arm, 1, int(failed), [] if failed else [perf_counter() - copy.begun])

        def answered(copy: RequestExchange, others: Mapping[str, Any], named: bool) -> None:
            same = _agree(outputs.get("prediction"), others.get("prediction"))
            self._arm[tally.COMPARED] += 1
            self._arm[tally.DIFFERENT] += not same
            copy.send(b"", b"")

        copy = ShadowCopy(done)
        copy.guarded(lambda: ask(self._plain, copy, self._canary_view, answered))


class ShadowCopy(RequestExchange):
    """A request that nobody waits for."""

    def __init__(self, done: Callable[[bool, ShadowCopy], None]) -> None:
        self.method, self.url, self.headers, self.body = b"POST", b"", {}, b""
        self.begun = self.arrived = self.parsed = perf_counter()
        self._done = done

    def send(self, head: bytes, body: bytes, status_code: int = 200) -> None:
        self._end(failed=False)

    def refuse(self, refusal: Refusal) -> None:
        self._end(failed=True)

    def _end(self, failed: bool) -> None:
        if not self.finished:
            self.finished = True
            self._done(failed, self)


def _too_late(exchange: RequestExchange) -> None:
    exchange.answered_instead(Refusal(504, "it did not answer in time"))


def _key_of(exchange: RequestExchange, key: str | None) -> bytes | None:
    """None if the request has none."""
    if key is None:
        return None
    kind, _, name = key.partition(":")
    if kind == "header":
        return exchange.headers.get(name.lower().encode())
    try:
        found = orjson.loads(exchange.body)
    except orjson.JSONDecodeError:
        return None
    if isinstance(found, list) and found:
        found = found[0]
    value = found.get(name) if isinstance(found, dict) else None
    if isinstance(value, list):
        value = value[0] if value else None
    return None if value is None else str(value).encode()


def _agree(first: Any, other: Any) -> bool:
    first, other = np.asarray(first), np.asarray(other)
    if first.shape != other.shape or first.dtype.kind not in "biuf":
        return False
    if first.dtype.kind in "biu":
        return bool((first == other).all())
    return bool(np.allclose(first, other, rtol=_SAME, atol=_SAME * float(np.abs(first).mean() or 1.0), equal_nan=True))
