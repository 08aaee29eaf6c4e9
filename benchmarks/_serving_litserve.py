"""LitServe as a peer of serving_cpu; see _serving_peers for the forms of requests. It pickles its classes."""

from typing import Annotated, Any

import litserve
import numpy as np
from _serving_peers import (
    BINARY,
    INPUTS,
    PORT,
    SETTINGS,
    OnnxModel,
    Row,
    bytes_of,
    lists_of,
    row_of_bytes,
    row_of_json,
    threads_of_each,
)
from fastapi import Body, Response


class Served(litserve.LitAPI):
    def setup(self, device: str) -> None:
        self.model = OnnxModel(threads_of_each())

    def batch(self, inputs: list[Row]) -> Row:
        return {name: np.concatenate([row[name] for row in inputs]) for name, *_ in INPUTS}

    def predict(self, x: Row) -> dict[str, Any]:
        return self.model(x)

    def unbatch(self, output: dict[str, Any]) -> list[dict[str, Any]]:
        rows = len(next(iter(output.values())))
        return [{name: column[row : row + 1] for name, column in output.items()} for row in range(rows)]


class ServedBinary(Served):
    def decode_request(self, request: Annotated[bytes, Body(media_type="application/octet-stream")]) -> Row:
        return row_of_bytes(request)

    def encode_response(self, output: dict[str, Any]):  # LitServe would take an annotation as the type of the answer
        return Response(bytes_of(output), media_type="application/octet-stream")


class ServedJson(Served):
    def decode_request(self, request):  # without a type LitServe parses JSON by itself
        return row_of_json(request)

    def encode_response(self, output: dict[str, Any]):
        return lists_of(output)


if __name__ == "__main__":
    made = (ServedBinary if BINARY else ServedJson)(
        max_batch_size=SETTINGS["batch_rows"], batch_timeout=SETTINGS["batch_timeout_s"]
    )
    server = litserve.LitServer(
        made, accelerator="cpu", workers_per_device=SETTINGS["processes"], fast_queue=SETTINGS["fast_queue"]
    )
    server.run(
        host="127.0.0.1",
        port=PORT,
        num_api_servers=SETTINGS["fronts"],
        generate_client_file=False,
        log_level="warning",
        access_log=False,
    )
