"""OpenAPI 3.1: what /predict and the Open Inference Protocol take and give, from the signatures of the models."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

import orjson

from flatout import __version__
from flatout.data.fitted import RawInput
from flatout.serving.front.model_view import ModelView, TensorSpec


def openapi_page(views: Mapping[str, Mapping[str, ModelView]], has_token: bool) -> bytes:
    newest = {name: list(versions.values())[-1] for name, versions in views.items()}
    paths: dict[str, Any] = {
        "/v2": {"get": _get("serverMetadata", "Name, version and extensions of the server")},
        "/v2/health/live": {"get": _get("serverLive", "Whether the server runs", is_open=True)},
        "/v2/health/ready": {"get": _get("serverReady", "Whether all models can be asked", is_open=True)},
        "/v2/models/stats": {"get": _get("statistics", "Counts and times of all models")},
    }
    schemas: dict[str, Any] = dict(_OIP_SCHEMAS)
    for place, (name, view) in enumerate(newest.items()):
        own = f"Model{place}" if len(newest) > 1 else "Model"
        row, answer = f"{own}Row", f"{own}Answer"
        schemas[row], schemas[answer] = _row(view), _answer(view)
        ways = [f"/models/{quote(name, safe='')}/predict", *(["/predict"] if len(newest) == 1 else [])]
        for path in ways:
            identity = "predict" if path == "/predict" else f"predict{own}"
            paths[path] = {"post": _predict(view, identity, row, answer)}
        at = f"/v2/models/{quote(name, safe='')}"
        paths[at] = {"get": _get(f"metadata{own}", f"Inputs and outputs of {name}")}
        paths[f"{at}/ready"] = {"get": _get(f"ready{own}", f"Whether {name} can be asked")}
        paths[f"{at}/infer"] = {"post": _infer(view, f"infer{own}")}
    page: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {"title": "flatout", "version": __version__, "description": f"Serves {', '.join(newest) or 'no model'}."},
        "paths": paths,
        "components": {"schemas": schemas},
    }
    if has_token:
        page["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
        page["security"] = [{"token": []}]
    return orjson.dumps(page)


_ERROR = {"type": "object", "properties": {"error": {"type": "string"}}, "required": ["error"]}
_ANYTHING = {"type": "object"}
_OIP_TENSOR = {
    "type": "object",
    "required": ["name", "shape", "datatype"],
    "properties": {
        "name": {"type": "string"},
        "shape": {"type": "array", "items": {"type": "integer"}},
        "datatype": {"type": "string"},
        "parameters": _ANYTHING,
        "data": {"type": "array", "items": {}},
    },
}
_OIP_SCHEMAS = {
    "Error": _ERROR,
    "OipTensor": _OIP_TENSOR,
    "OipRequest": {
        "type": "object",
        "required": ["inputs"],
        "properties": {
            "id": {"type": "string"},
            "parameters": _ANYTHING,
            "inputs": {"type": "array", "items": {"$ref": "#/components/schemas/OipTensor"}},
            "outputs": {"type": "array", "items": {"type": "object", "properties": {"name": {"type": "string"}}}},
        },
    },
    "OipAnswer": {
        "type": "object",
        "required": ["model_name", "outputs"],
        "properties": {
            "model_name": {"type": "string"},
            "model_version": {"type": "string"},
            "id": {"type": "string"},
            "outputs": {"type": "array", "items": {"$ref": "#/components/schemas/OipTensor"}},
        },
    },
}
_HEADERS = [
    {"name": "x-flatout-deadline-ms", "in": "header", "schema": {"type": "number"}, "description": "503 if it can't be held"},
    {"name": "x-flatout-priority", "in": "header", "schema": {"type": "integer"}, "description": "0 goes first"},
]


def _ref(name: str) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{name}"}


def _answers(schema: Mapping[str, Any], more: Mapping[str, Any] | None = None) -> dict[str, Any]:
    problem = {"content": {"application/json": {"schema": _ref("Error")}}}
    return {
        "200": {"description": "The answer", "content": {"application/json": {"schema": schema}, **(more or {})}},
        "400": {"description": "The request has a mistake", **problem},
        "503": {"description": "Too busy; retry later", **problem},
    }


def _get(identity: str, summary: str, is_open: bool = False) -> dict[str, Any]:
    found = {"operationId": identity, "summary": summary, "responses": _answers(_ANYTHING)}
    return {**found, "security": []} if is_open else found


def _predict(view: ModelView, identity: str, row: str, answer: str) -> dict[str, Any]:
    rows = {"type": "object", "required": ["rows"], "properties": {"rows": {"type": "array", "items": _ref(row)}}}
    content: dict[str, Any] = {
        "application/json": {"schema": {"anyOf": [_ref(row), {"type": "array", "items": _ref(row)}, rows]}}
    }
    more: dict[str, Any] = {}
    if view.kind == "table":
        content["text/csv"] = {"schema": {"type": "string"}}
        more["text/csv"] = {"schema": {"type": "string"}}
    if view.kind == "photos":
        for kind in ("image/jpeg", "image/png", "image/webp", "application/octet-stream"):
            content[kind] = {"schema": {"type": "string", "format": "binary"}}
        photo = {"type": "array", "items": {"type": "string", "format": "binary"}}
        content["multipart/form-data"] = {"schema": {"type": "object", "properties": {"photo": photo}}}
    if "text" in view.raw_specs and view.kind != "table":
        content["text/plain"] = {"schema": {"type": "string"}}
    many = {
        "type": "object",
        "required": ["predictions"],
        "properties": {"predictions": {"type": "array", "items": _ref(answer)}},
    }
    return {
        "operationId": identity,
        "summary": f"Predictions of {view.name}: one row, or many",
        "parameters": _HEADERS,
        "requestBody": {"required": True, "content": content},
        "responses": _answers({"anyOf": [_ref(answer), many]}, more),
    }


def _infer(view: ModelView, identity: str) -> dict[str, Any]:
    return {
        "operationId": identity,
        "summary": f"Inference with {view.name} by the Open Inference Protocol v2",
        "parameters": _HEADERS,
        "requestBody": {"required": True, "content": {"application/json": {"schema": _ref("OipRequest")}}},
        "responses": _answers(_ref("OipAnswer")),
    }


def _row(view: ModelView) -> dict[str, Any]:
    return {
        "type": "object",
        "required": [raw.name for raw in view.raw],
        "properties": {raw.name: _raw(raw, view.raw_specs[raw.name]) for raw in view.raw},
    }


def _raw(raw: RawInput, spec: TensorSpec) -> dict[str, Any]:
    match raw.kind:
        case "number":
            return {"type": ["number", "null"]}
        case "category":
            return {"type": ["string", "number", "boolean", "null"]}
        case "date":
            return {"type": ["string", "null"], "description": "ISO 8601"}
        case "photo":
            return {"type": "string", "contentEncoding": "base64", "description": "the file"}
        case "text":
            return {"type": "string"}
    return _tensor(spec)


def _tensor(spec: TensorSpec) -> dict[str, Any]:
    kinds = {"BOOL": "boolean", "BYTES": "string"}
    number = "number" if spec.datatype[:2] in ("FP", "BF") else "integer"
    found: dict[str, Any] = {"type": kinds.get(spec.datatype, number)}
    for size in reversed(spec.shape):
        found = {"type": "array", "items": found, **({} if size is None else {"minItems": size, "maxItems": size})}
    return found


def _answer(view: ModelView) -> dict[str, Any]:
    return {"type": "object", "properties": {name: _tensor(spec) for name, spec in view.outputs.items()}}
