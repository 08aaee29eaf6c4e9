"""The Open Inference Protocol except inference: health, metadata, configuration, statistics, the repository."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import orjson

from flatout import __version__
from flatout.serving.front.exchange import RequestExchange
from flatout.serving.front.model_view import ModelView
from flatout.serving.front.refusals import Refusal
from flatout.serving.front.repository import Repository
from flatout.serving.front.watching import ModelStatistics, Watching

EXTENSIONS = ("binary_tensor_data", "parameters", "statistics", "model_repository")


class OipPages:
    """Of the models as they are now: another set of models gets another object."""

    def __init__(
        self,
        views: Mapping[str, Mapping[str, ModelView]],
        watching: Watching,
        repository: Repository | None,
        is_ready: Callable[[], bool],
    ) -> None:
        self._views, self._watching, self._repository, self._is_ready = views, watching, repository, is_ready

    def server(self, exchange: RequestExchange) -> None:
        extensions = [name for name in EXTENSIONS if name != "model_repository" or self._repository is not None]
        exchange.send_json(orjson.dumps({"name": "flatout", "version": __version__, "extensions": extensions}))

    def live(self, exchange: RequestExchange) -> None:
        exchange.send_json(b'{"live":true}')

    def ready(self, exchange: RequestExchange) -> None:
        if not self._is_ready():
            raise Refusal(503, "the server is not ready: its models are being loaded, or it is shutting down")
        exchange.send_json(b'{"ready":true}')

    def model_ready(self, view: ModelView, exchange: RequestExchange) -> None:
        if not self._is_ready():
            raise Refusal(503, f"the model {view.name} is not ready")
        exchange.send_json(orjson.dumps({"name": view.name, "ready": True}))

    def metadata(self, view: ModelView, exchange: RequestExchange) -> None:
        exchange.model = view.model
        exchange.send_json(
            orjson.dumps(
                {
                    "name": view.name,
                    "versions": list(self._views[view.name]),
                    "platform": "flatout",
                    "inputs": [spec.metadata() for spec in view.raw_specs.values()],
                    "outputs": [spec.metadata() for spec in view.outputs.values()],
                    # a client may prepare rows itself and send these instead
                    "parameters": {"prepared_inputs": [spec.metadata() for spec in view.prepared.values()]},
                }
            )
        )

    def config(self, view: ModelView, exchange: RequestExchange) -> None:
        exchange.send_json(
            orjson.dumps(
                {
                    "name": view.name,
                    "platform": "flatout",
                    "backend": "flatout",
                    "version_policy": {"specific": {"versions": list(self._views[view.name])}},
                    "max_batch_size": 0,  # shapes have the rows as their first dimension
                    "input": [_config(spec.metadata()) for spec in view.raw_specs.values()],
                    "output": [_config(spec.metadata()) for spec in view.outputs.values()],
                    "dynamic_batching": {},
                }
            )
        )

    def statistics(self, views: list[ModelView], exchange: RequestExchange) -> None:
        found = [_statistics(view, self._watching.statistics(view.name, view.version)) for view in views]
        exchange.send_json(orjson.dumps({"model_stats": found}))

    def all_statistics(self, exchange: RequestExchange) -> None:
        self.statistics([view for versions in self._views.values() for view in versions.values()], exchange)

    def index(self, exchange: RequestExchange) -> None:
        asked = _object(exchange.body)
        found = [vars(entry) for entry in self._has_repository().index()]
        if asked.get("ready") is True:
            found = [entry for entry in found if entry["state"] == "READY"]
        exchange.send_json(orjson.dumps(found))

    def load(self, name: str, exchange: RequestExchange) -> None:
        given = _object(exchange.body).get("parameters") or {}
        if given:
            raise Refusal(400, f"a model is loaded as its package says: no parameters are accepted, got {', '.join(given)}")
        self._has_repository().load(name, partial(_changed, exchange))

    def unload(self, name: str, exchange: RequestExchange) -> None:
        self._has_repository().unload(name, partial(_changed, exchange))

    def _has_repository(self) -> Repository:
        if self._repository is None:
            raise Refusal(501, "this server has no model repository: its models were given when it started")
        return self._repository


def _changed(exchange: RequestExchange, problem: str | None) -> None:
    if problem is None:
        exchange.send_json(b"{}")
    else:
        exchange.refuse(Refusal(400, problem))


def _object(body: bytes) -> dict[str, Any]:
    if not body.strip():
        return {}
    try:
        found = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise Refusal(400, f"the request is no valid JSON: {error}") from None
    if not isinstance(found, dict):
        raise Refusal(400, f"expected a JSON object, got {type(found).__name__}")
    return found


def _config(metadata: Mapping[str, Any]) -> dict[str, Any]:
    datatype = "STRING" if metadata["datatype"] == "BYTES" else metadata["datatype"]
    return {"name": metadata["name"], "data_type": f"TYPE_{datatype}", "dims": metadata["shape"]}


def _statistics(view: ModelView, sums: ModelStatistics) -> dict[str, Any]:
    """In Triton's form: counts and nanoseconds."""

    def duration(count: int, seconds: float) -> dict[str, int]:
        return {"count": count, "ns": round(seconds * 1e9)}

    return {
        "name": view.name,
        "version": view.version,
        "last_inference": sums.last_ms,
        "inference_count": sums.rows,
        "execution_count": sums.batches_run,
        "inference_stats": {
            "success": duration(sums.requests, sums.total_s),
            "fail": duration(sums.failed, sums.failed_s),
            "queue": duration(sums.requests, sums.queue_s),
            "compute_input": duration(sums.requests, sums.decode_s),
            "compute_infer": duration(sums.requests, sums.compute_s),
            "compute_output": duration(sums.requests, sums.encode_s),
            "cache_hit": duration(0, 0),
            "cache_miss": duration(0, 0),
        },
        "batch_stats": [
            {"batch_size": size, "compute_infer": duration(count, seconds)} for size, (count, seconds) in sums.batches.items()
        ],
    }
