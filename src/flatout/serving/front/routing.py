"""Which handler answers which path: exact ones in a table, other spellings and unknown paths by looking closer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from urllib.parse import quote, unquote

from flatout.base.errors import did_you_mean
from flatout.serving.front.canary_split import CanarySplit
from flatout.serving.front.exchange import RequestExchange
from flatout.serving.front.model_view import ModelView
from flatout.serving.front.oip import OipInfer
from flatout.serving.front.oip_pages import OipPages
from flatout.serving.front.predict import Predict
from flatout.serving.front.refusals import REASONS, Refusal
from flatout.serving.front.sampling_desk import AnyDesk
from flatout.serving.front.site import Handler, Routes

Page = Callable[[], tuple[int, str, bytes]]
_LONGEST_NAME = 200


def build_routes(
    views: Mapping[str, Mapping[str, ModelView]],
    desk: AnyDesk,
    pages: OipPages,
    extra: Mapping[str, Page],
    openapi: bytes,
    splits: Mapping[str, CanarySplit] | None = None,
    extra_posts: Mapping[str, Handler] | None = None,
) -> Routes:
    """The newest version of a model answers where no version is named, or it shares the requests with a canary."""
    gets: dict[str, Handler] = {
        "/v2": pages.server,
        "/v2/health/live": pages.live,
        "/v2/health/ready": pages.ready,
        "/v2/models/stats": pages.all_statistics,
        "/openapi.json": lambda exchange: exchange.send_json(openapi),
        **{path: partial(_page, page) for path, page in extra.items()},
    }
    posts: dict[str, Handler] = {"/v2/repository/index": pages.index, **(extra_posts or {})}
    splits = splits or {}
    infers: dict[tuple[str, str], OipInfer] = {}
    for name, versions in views.items():
        newest = list(versions.values())[-1]
        quoted = quote(name, safe="")
        split = splits.get(name)
        predict = Predict(desk, newest).predict if split is None else split.predict
        infers |= {(name, view.version): OipInfer(desk, view) for view in versions.values()}
        infers[name, ""] = infers[name, newest.version]
        for view in [*versions.values(), newest]:
            at = f"/v2/models/{quoted}" if view is newest else f"/v2/models/{quoted}/versions/{quote(view.version, safe='')}"
            for path in {at, f"/v2/models/{quoted}/versions/{quote(view.version, safe='')}"}:
                gets[path] = partial(pages.metadata, view)
                gets[f"{path}/ready"] = partial(pages.model_ready, view)
                gets[f"{path}/config"] = partial(pages.config, view)
                posts[f"{path}/infer"] = infers[name, view.version].infer
            gets[f"/v2/models/{quoted}/versions/{quote(view.version, safe='')}/stats"] = partial(pages.statistics, [view])
        gets[f"/v2/models/{quoted}/stats"] = partial(pages.statistics, list(versions.values()))
        if split is not None:
            posts[f"/v2/models/{quoted}/infer"] = split.infer
        posts[f"/models/{quoted}/predict"] = predict
        if len(views) == 1:
            posts["/predict"] = predict
    if len(views) != 1:
        posts["/predict"] = partial(_which_model, list(views))
    known = ({path.encode(): handler for path, handler in table.items()} for table in (gets, posts))
    as_gets, as_posts = known
    elsewhere = _Elsewhere(as_gets, as_posts, pages, {name: list(found) for name, found in views.items()})
    return Routes(as_gets, as_posts, elsewhere, infers, splits)


class _Elsewhere:
    def __init__(
        self, gets: dict[bytes, Handler], posts: dict[bytes, Handler], pages: OipPages, versions: Mapping[str, list[str]]
    ) -> None:
        self._gets, self._posts, self._pages, self._versions = gets, posts, pages, versions

    def __call__(self, exchange: RequestExchange) -> None:
        path, method = self._path(exchange.url), exchange.method
        table = self._gets if method in (b"GET", b"HEAD") else self._posts if method == b"POST" else {}
        handler = table.get(path)
        if handler is not None:
            handler(exchange)
            return
        parts = unquote(path.decode("latin-1"))[1:].split("/")
        loads = len(parts) == 5 and parts[:3] == ["v2", "repository", "models"] and parts[4] in ("load", "unload")
        allowed = self._allowed(path, loads)
        if method == b"OPTIONS" and allowed:
            exchange.send(b"HTTP/1.1 200 OK\r\nAllow: %b\r\n" % allowed, b"")
        elif allowed and not (loads and method == b"POST"):
            came = method[:20].decode("latin-1")
            why = f"{_shown(path)} takes {allowed.decode()}, got {came}"
            raise Refusal(405, why, b"Allow: %b\r\n" % allowed)
        elif loads:
            (self._pages.load if parts[4] == "load" else self._pages.unload)(parts[3], exchange)
        else:
            raise Refusal(404, self._unknown(path, parts))

    def _allowed(self, path: bytes, loads: bool) -> bytes:
        both = (b"GET, HEAD" if path in self._gets else b"", b"POST" if path in self._posts or loads else b"")
        return b", ".join(methods for methods in both if methods)

    def _path(self, url: bytes) -> bytes:
        """In the spelling of the tables: without a query, host, doubled quoting or a slash at the end."""
        if url.startswith((b"http://", b"https://")):
            url = b"/" + url.partition(b"//")[2].partition(b"/")[2]
        path = url.partition(b"?")[0].partition(b"#")[0]
        spelt = "/".join(quote(unquote(part), safe="") for part in path.decode("latin-1").split("/"))
        return (spelt.rstrip("/") or "/").encode()

    def _unknown(self, path: bytes, parts: list[str]) -> str:
        names = self._versions
        named = parts[2] if parts[:2] == ["v2", "models"] and len(parts) > 2 else None
        named = parts[1] if parts[0] == "models" and len(parts) > 1 else named
        if named is not None and named not in names:
            return f"no model {named[:_LONGEST_NAME]!r} is served; {did_you_mean(named, names) if names else 'none is'}"
        if named is not None and len(parts) > 4 and parts[3] == "versions" and parts[4] not in names[named]:
            return f"the model {named} has no version {parts[4][:_LONGEST_NAME]!r}; it has {', '.join(names[named])}"
        return f"there is nothing at {_shown(path)}; the paths are in /openapi.json"


def _page(page: Page, exchange: RequestExchange) -> None:
    status, content_type, body = page()
    head = b"HTTP/1.1 %d %b\r\nContent-Type: %b\r\n" % (status, REASONS.get(status, b"Answer"), content_type.encode())
    exchange.send(head, body, status)


def _which_model(names: list[str], exchange: RequestExchange) -> None:
    if not names:
        raise Refusal(503, "no model is served at this moment", b"Retry-After: 1\r\n")
    raise Refusal(404, f"{len(names)} models are served: use /models/NAME/predict with one of {', '.join(names)}")


def _shown(path: bytes) -> str:
    text = path[:_LONGEST_NAME].decode("latin-1")
    return text if len(path) <= _LONGEST_NAME else text + "..."
