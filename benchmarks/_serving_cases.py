"""The models that servers answer with: their packages, and their first row in each form that a request can have."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from packages import export_seconds, trained

import flatout as fo
from flatout.packaging.onnx_front import prepared_inputs
from flatout.packaging.package import Package
from flatout.packaging.runtimes.onnxruntime_runtime import from_prepared

OIP_TYPES = {"float32": "FP32", "int32": "INT32", "int64": "INT64", "uint8": "UINT8"}


@dataclass(frozen=True)
class Body:
    """What a request sends: the file, its headers, the path."""

    file: Path
    headers: Mapping[str, str]
    path: str

    def for_load(self, url: str) -> list[str]:
        kind = self.headers["Content-Type"]
        others = [f"{name}: {value}" for name, value in self.headers.items() if name != "Content-Type"]
        return [
            url + self.path,
            "--body",
            str(self.file),
            "--type",
            kind,
            *(part for one in others for part in ("--header", one)),
        ]


@dataclass(frozen=True)
class Case:
    """A package and its first row in all forms."""

    name: str
    package: Package
    place: Path

    def row(self, rows: int = 1) -> dict[str, np.ndarray[Any, Any]]:
        every = {port.name: self.package.samples.rows[port.name].numpy() for port in self.package.program.inputs}
        return {name: np.resize(column, (rows, *column.shape[1:])) for name, column in every.items()}

    def tensors(self, rows: int) -> Body:
        """By the binary extension of the Open Inference Protocol."""
        given = self.row(rows)
        described = [
            {"name": name, "shape": column.shape, "datatype": OIP_TYPES[str(column.dtype)],
             "parameters": {"binary_data_size": column.nbytes}}
            for name, column in given.items()
        ]  # fmt: skip
        head = json.dumps({"inputs": described, "parameters": {"binary_data_output": True}}).encode()
        file = self._written(f"tensors-{rows}", head + b"".join(column.tobytes() for column in given.values()))
        headers = {"Content-Type": "application/octet-stream", "Inference-Header-Content-Length": str(len(head))}
        return Body(file, headers, f"/v2/models/{self.name}/infer")

    def raw_json(self) -> Body:
        raw = {name: column[0] for name, column in self.package.samples.raw.items()}
        return Body(self._written("raw.json", json.dumps(raw).encode()), {"Content-Type": "application/json"}, "/predict")

    def for_peers(self, form: str) -> Body:
        row = self.row()
        if form == "json":
            content = json.dumps({name: column[0].tolist() for name, column in row.items()}).encode()
            return Body(self._written("prepared.json", content), {"Content-Type": "application/json"}, "/predict")
        content = b"".join(column.tobytes() for column in row.values())
        return Body(self._written("prepared.bin", content), {"Content-Type": "application/octet-stream"}, "/predict")

    def _written(self, name: str, content: bytes) -> Path:
        file = self.place / f"{self.name}-{name}"
        file.write_bytes(content)
        return file

    def expected(self) -> dict[str, np.ndarray[Any, Any]]:
        return {port.name: self.package.samples.outputs[port.name][:1].numpy() for port in self.package.program.outputs}

    def peer_folder(self) -> Path:
        """The same weights as ONNX, without the preparation of raw rows."""
        import onnx

        folder = self.place / f"peer-{self.name}"
        folder.mkdir()
        whole = onnx.load(self.package.path / "model.onnx")
        inputs = prepared_inputs(whole)
        onnx.save(from_prepared(whole, list(inputs.values())), folder / "model.onnx")
        described = [
            {"name": port.name, "value": inputs[port.name].name, "dtype": port.dtype, "shape": port.shape[1:]}
            for port in self.package.program.inputs
        ]
        about = {"inputs": described, "package": str(self.package.path.resolve())}
        (folder / "peer.json").write_text(json.dumps(about))
        return folder


def packaged(name: str, example: str, given: Path | None, place: Path) -> Case:
    package = place / f"package-{name}"
    if given is None:
        export_seconds(trained(example, place), package, place)
    else:
        shutil.copytree(given, package)  # onnx does not read weights that have several hard links
    return Case(name, fo.load(package), place)
