"""The other servers of serving_cpu: onnxruntime behind uvicorn, and FastAPI with PyTorch. They run in their own environment.

    python _serving_peers.py uvicorn|fastapi FOLDER PORT '{"form": "binary", "processes": 1}'

FOLDER has `model.onnx`, which takes prepared rows, and `peer.json`, which describes them. In the form `binary` a body is the
bytes of the input tensors of one row, one after the other, and an answer is the bytes of the outputs; in the form `json` both
are lists by name.
"""

import json
import os
import sys
from pathlib import Path
from typing import Annotated, Any

import numpy as np

SERVER, FOLDER, PORT, SETTINGS = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), json.loads(sys.argv[4])
ABOUT = json.loads((FOLDER / "peer.json").read_text())
BINARY = SETTINGS["form"] == "binary"
INPUTS = [(one["name"], one["value"], np.dtype(one["dtype"]), tuple(one["shape"])) for one in ABOUT["inputs"]]
Row = dict[str, Any]


def row_of_bytes(body: bytes) -> Row:
    row, at = {}, 0
    for name, _, dtype, shape in INPUTS:
        count = int(np.prod(shape))
        row[name] = np.frombuffer(body, dtype, count, at).reshape(1, *shape)
        at += count * dtype.itemsize
    return row


def row_of_json(given: dict[str, Any]) -> Row:
    return {name: np.array(given[name], dtype).reshape(1, *shape) for name, _, dtype, shape in INPUTS}


class OnnxModel:
    """The same session options as flatout's own."""

    def __init__(self, threads: int) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        self._session = onnxruntime.InferenceSession(str(FOLDER / "model.onnx"), options, providers=["CPUExecutionProvider"])
        self.outputs = [one.name for one in self._session.get_outputs()]

    def __call__(self, row: Row) -> dict[str, Any]:
        made = self._session.run(self.outputs, {value: row[name] for name, value, _, _ in INPUTS})
        return dict(zip(self.outputs, made, strict=True))


class TorchModel:
    """The package's own program, operator by operator, as PyTorch runs a model."""

    def __init__(self, threads: int) -> None:
        import torch

        import flatout
        from flatout.packaging.runtimes.eager import EagerRuntime

        torch.set_num_threads(threads)
        self._from_numpy = torch.from_numpy
        self._runtime = EagerRuntime.load(flatout.load(ABOUT["package"]).parts(torch.device("cpu")))

    def __call__(self, row: Row) -> dict[str, Any]:
        made = self._runtime.run({name: self._from_numpy(np.array(column)) for name, column in row.items()})
        return {name: tensor.numpy() for name, tensor in made.items()}


def threads_of_each() -> int:
    return max(1, len(os.sched_getaffinity(0)) // SETTINGS["processes"])


def bytes_of(outputs: dict[str, Any]) -> bytes:
    return b"".join([column.tobytes() for column in outputs.values()])


def lists_of(outputs: dict[str, Any]) -> dict[str, Any]:
    return {name: column[0].tolist() for name, column in outputs.items()}


def uvicorn_with(app: str) -> None:
    import uvicorn

    os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    uvicorn.run(app, factory=True, host="127.0.0.1", port=PORT, workers=SETTINGS["processes"], loop="uvloop", http="httptools",
                access_log=False, log_level="warning", lifespan="off")  # fmt: skip


def onnx_app() -> Any:
    """The least that ASGI can do: no framework, the model is called in the event loop."""
    model = OnnxModel(threads_of_each())
    kind = b"application/octet-stream" if BINARY else b"application/json"

    async def app(scope: Any, receive: Any, send: Any) -> None:
        body, more = b"", True
        while more:
            message = await receive()
            body += message.get("body", b"")
            more = message.get("more_body", False)
        if BINARY:
            answer = bytes_of(model(row_of_bytes(body)))
        else:
            import orjson

            answer = orjson.dumps(lists_of(model(row_of_json(orjson.loads(body)))))
        head = [(b"content-type", kind), (b"content-length", str(len(answer)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": head})
        await send({"type": "http.response.body", "body": answer})

    return app


def torch_app() -> Any:
    """As the tutorials write it: FastAPI, one row at a time, in FastAPI's threads."""
    from fastapi import Body, FastAPI, Response

    model = TorchModel(threads_of_each())
    app = FastAPI()

    if BINARY:

        @app.post("/predict")
        def predict(body: Annotated[bytes, Body(media_type="application/octet-stream")]) -> Response:
            return Response(bytes_of(model(row_of_bytes(body))), media_type="application/octet-stream")
    else:

        @app.post("/predict")
        def predict(row: dict[str, list[float]]) -> dict[str, Any]:
            return lists_of(model(row_of_json(row)))

    return app


if __name__ == "__main__":
    uvicorn_with(f"{Path(__file__).stem}:{'onnx_app' if SERVER == 'uvicorn' else 'torch_app'}")
