"""POST /feedback and POST /canary: labels of earlier answers, and a person's verdict."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import orjson

from flatout.serving.front.exchange import RequestExchange
from flatout.serving.front.refusals import Refusal
from flatout.serving.front.site import Handler

AskSupervisor = Callable[..., None]
_MOST_LABELS = 1000  # at once
_DECISIONS = {"promote": "promoted", "roll back": "rolled back"}


def canary_posts(ask: AskSupervisor) -> dict[str, Handler]:
    return {"/feedback": partial(_feedback, ask), "/canary": partial(_decide, ask)}


def _feedback(ask: AskSupervisor, exchange: RequestExchange) -> None:
    given = _parsed(exchange.body)
    labels = given if isinstance(given, list) else [given]
    if not labels or len(labels) > _MOST_LABELS:
        raise Refusal(400, f"expected 1 to {_MOST_LABELS:,} labels at once, got {len(labels):,}")
    for one in labels:
        if not isinstance(one, dict) or set(one) != {"id", "label"}:
            raise Refusal(400, 'a label is written as {"id": the X-Flatout-Id of an answer, "label": what was right}')
    ask("label", partial(_told, exchange, isinstance(given, list)), labels=labels)


def _told(exchange: RequestExchange, several: bool, said: Mapping[str, Any]) -> None:
    found = said["found"]
    if len(found) == 1 and found[0]["status"] != 200:
        exchange.refuse(Refusal(found[0]["status"], found[0]["why"]))
    elif several:
        counted = sum(bool(one.get("counted")) for one in found)
        exchange.send_json(orjson.dumps({"counted": counted, "labels": found}))
    else:
        exchange.send_json(orjson.dumps({"counted": found[0]["counted"], "why": found[0]["why"]}))


def _decide(ask: AskSupervisor, exchange: RequestExchange) -> None:
    given = _parsed(exchange.body)
    wanted = given.get("do") if isinstance(given, dict) else None
    if wanted not in _DECISIONS:
        raise Refusal(400, f'expected {{"do": "promote"}} or {{"do": "roll back"}}, got {str(given)[:100]}')
    ask("decide", partial(_decided, exchange), status=_DECISIONS[wanted])


def _decided(exchange: RequestExchange, said: Mapping[str, Any]) -> None:
    found = said["found"][0]
    if found["status"] == 200:
        exchange.send_json(b"{}")
    else:
        exchange.refuse(Refusal(found["status"], found["why"]))


def _parsed(body: bytes) -> Any:
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise Refusal(400, f"the request is no valid JSON: {error}") from None
