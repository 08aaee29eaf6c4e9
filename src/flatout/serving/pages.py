"""What a server shows about itself: the page to try it on, live figures, metrics, and the explanation of its times."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.resources import files
from typing import Any

from flatout.base.tree import to_data, to_text
from flatout.serving.asking import ServedModel
from flatout.serving.beside import notes
from flatout.serving.counters import SharedCounters
from flatout.serving.explaining import serving_doc
from flatout.serving.history import Between, History
from flatout.serving.metrics import metrics_text
from flatout.serving.shared_watching import SharedWatching

_EXPLAINED_S = 10.0
_MOST_SHOWN = 4096  # numbers of a sample
_PLAIN, _JSON = "text/plain; charset=utf-8", "application/json"

Page = Callable[[], tuple[int, str, bytes]]


class ServerPages:
    """`models` are those that are served now, by name."""

    def __init__(self, counters: SharedCounters, watching: SharedWatching) -> None:
        self.models: Mapping[str, ServedModel] = {}
        self._counters, self._watching = counters, watching
        self._status: Mapping[str, Any] = {}
        self._history = History(counters)
        self._page = files("flatout.serving").joinpath("page.html").read_bytes()

    def heard(self, status: Mapping[str, Any]) -> None:
        """What the supervisor says each second."""
        self._status = status
        self._watching.batches = status["models"]
        self._history.look(self._watching.places, status)

    def routes(self) -> dict[str, Page]:
        return {
            "/": lambda: (200, "text/html; charset=utf-8", self._page),
            "/metrics": self._metrics,
            "/live.json": self._live,
            "/canary": lambda: (200, _JSON, _as_json(self._status.get("canary"))),
            "/drift": lambda: (200, _JSON, _as_json(self._status.get("drift"))),
            "/explain": lambda: (200, _PLAIN, to_text(serving_doc(self._history.last(_EXPLAINED_S))).encode()),
            "/explain.json": lambda: (200, _JSON, _as_json(to_data(serving_doc(self._history.last(_EXPLAINED_S))))),
        }

    def _metrics(self) -> tuple[int, str, bytes]:
        self._watching.flush()
        places = self._watching.places
        versions = {name: (model.version, places.get(name, 0)) for name, model in self.models.items()}
        return 200, "text/plain; version=0.0.4; charset=utf-8", metrics_text(self._counters, versions, self._status).encode()

    def _live(self) -> tuple[int, str, bytes]:
        models = {name: self._about(model) for name, model in self.models.items()}
        series = {name: [self._point(one, name) for one in self._history.seconds()] for name in models}
        now = self._history.last(_EXPLAINED_S)
        busy = {} if now is None else {"device": now.device_share(), "fronts": now.front_share(), "cores": now.core_share()}
        body = {
            "models": models,
            "series": series,
            "busy": busy,
            "device": self._status.get("device"),
            "fronts": self._status.get("fronts"),
            "explained": to_text(serving_doc(now)),
            "notes": notes(self._status),
        }
        return 200, _JSON, _as_json(body)

    def _about(self, model: ServedModel) -> dict[str, Any]:
        package = model.package
        return {
            "version": model.version,
            "kind": package.fitted.host.kind,
            "goal": self._status.get("goals", {}).get(model.name),
            "runtime": self._status.get("models", {}).get(model.name, {}).get("runtime"),
            "classes": package.fitted.host.class_names,
            "inputs": [{"name": raw.name, "kind": raw.kind} for raw in package.fitted.host.inputs],
            "sample": _sample(model),
        }

    def _point(self, between: Between, name: str) -> dict[str, float]:
        if name not in between.after.tallies:
            return {}
        said = between.after.of_model(name)
        return {
            "rate": between.requests_per_s(name),
            "p50": 1e3 * (between.quantile_s(name, "total", 0.5) or 0.0),
            "p99": 1e3 * (between.quantile_s(name, "total", 0.99) or 0.0),
            "batch": between.batch_rows(name),
            "queue": said.get("waiting_rows", 0),
        }


def _sample(model: ServedModel) -> Any:
    """The first stored row as /predict takes it; None for photos and for what is too large to show."""
    samples, kind = model.package.samples, model.package.fitted.host.kind
    if kind == "photos":
        return None
    if isinstance(samples.raw, Mapping):
        return {name: column[0] for name, column in samples.raw.items()}
    if sum(column[0].numel() for column in samples.rows.values()) > _MOST_SHOWN:
        return None
    return {port.name: samples.rows[port.name][0].tolist() for port in model.inputs}


def _as_json(value: Any) -> bytes:
    import orjson

    return orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS)
