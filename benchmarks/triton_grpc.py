"""Asks a server with Triton's own gRPC client, unmodified, and compares its answers with those over REST.

    flatout serve churn=package/ --grpc-port 8001
    python benchmarks/triton_grpc.py localhost:8000 localhost:8001 churn row.json

`row.json` is one row of a table. The client needs an older protobuf than flatout, so it gets an environment of its own, made
once in --environment. Prints every check, then the rate of one-row requests and the CPU time of each in the server.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import time
import urllib.request
import venv
from collections.abc import Callable
from pathlib import Path
from typing import Any

_PACKAGES = ("tritonclient[grpc]", "numpy")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rest", help="host:port of HTTP")
    parser.add_argument("grpc", help="host:port of gRPC")
    parser.add_argument("model")
    parser.add_argument("row", type=Path)
    parser.add_argument("--environment", type=Path, default=Path.home() / ".cache/flatout-triton-grpc")
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)  # this interpreter has the client
    asked = parser.parse_args()
    if asked.here:
        measure(asked)
        check(asked)
        return
    python = asked.environment / "bin/python"
    if not python.exists():
        venv.create(asked.environment, with_pip=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", *_PACKAGES], check=True)
    sys.exit(subprocess.run([python, __file__, *sys.argv[1:], "--here"], check=False).returncode)


def check(asked: argparse.Namespace) -> None:
    import numpy as np
    import tritonclient.grpc as triton
    from tritonclient.utils import InferenceServerException

    client, model = triton.InferenceServerClient(asked.grpc), asked.model
    told("server live, ready", client.is_server_live() and client.is_server_ready())
    told("model ready", client.is_model_ready(model))
    told("an unknown model is not", not client.is_model_ready("no-such-model"))
    told("server metadata", client.get_server_metadata().name == "flatout")
    metadata = client.get_model_metadata(model)
    as_json = client.get_model_metadata(model, as_json=True)
    told("model metadata equals REST's", as_json["inputs"] == stringed(rest(asked, f"/v2/models/{model}")["inputs"]))
    config = client.get_model_config(model, as_json=True)["config"]
    told("model configuration", config["name"] == model and len(config["input"]) == len(metadata.inputs))
    told("repository index", [one.name for one in client.get_model_repository_index().models].count(model) == 1)
    inputs = tensors(asked, metadata.inputs)
    wanted = rest(asked, f"/models/{model}/predict", json.loads(asked.row.read_text()))
    for name, outputs in (("all outputs", None), ("one output", [triton.InferRequestedOutput("prediction")])):
        found = client.infer(model, inputs, outputs=outputs, request_id="seven", client_timeout=20, priority=1)
        values = {one.name: found.as_numpy(one.name) for one in found.get_response().outputs}
        shown = {key: plain(value[0]) for key, value in values.items() if value.ndim == 1}
        told(f"{name}: {shown}", all(one == wanted[key] or np.isclose(one, wanted[key]) for key, one in shown.items()))
        told("the request's id", found.get_response().id == "seven")
    done: list[Any] = []
    client.async_infer(model, inputs, lambda result, error: done.append((result, error)))
    while not done:
        time.sleep(0.01)
    told("asynchronous call", done[0][1] is None)
    wrong: tuple[tuple[str, Callable[[], Any]], ...] = (
        ("unknown model", lambda: client.infer("no-such-model", inputs)),
        ("missing inputs", lambda: client.infer(model, inputs[1:])),
        ("unknown output", lambda: client.infer(model, inputs, outputs=[triton.InferRequestedOutput("no-such-output")])),
    )
    for name, ask in wrong:
        try:
            ask()
            told(name, False)
        except InferenceServerException as error:
            told(f"{name}: {error.status()}: {error.message()[:90]}", True)
    statistics = client.get_inference_statistics(model).model_stats[0]
    told(f"statistics: {statistics.inference_count} rows", statistics.inference_stats.success.count > 0)
    client.load_model(model)
    told("load", client.is_model_ready(model))


def measure(asked: argparse.Namespace) -> None:
    import tritonclient.grpc.aio as triton

    async def run() -> int:
        clients = [triton.InferenceServerClient(asked.grpc) for _ in range(asked.clients)]
        metadata = await clients[0].get_model_metadata(asked.model)
        inputs, ends, counts = tensors(asked, metadata.inputs), time.monotonic() + asked.seconds, [0]

        async def ask(client: Any) -> None:
            while time.monotonic() < ends:
                await client.infer(asked.model, inputs)
                counts[0] += 1

        await asyncio.gather(*map(ask, clients))
        await asyncio.gather(*(client.close() for client in clients))
        return counts[0]

    began = cpu_seconds(asked)
    requests = asyncio.run(run())
    used = cpu_seconds(asked)
    print(f"{requests / asked.seconds:,.0f} requests/s of one row from {asked.clients} callers in one process")
    for name, seconds in used.items():
        print(f"  {name}: {1e6 * (seconds - began[name]) / requests:.0f} us of CPU a request")


def cpu_seconds(asked: argparse.Namespace) -> dict[str, float]:
    time.sleep(1.5)  # processes say it every half second
    with urllib.request.urlopen(f"http://{asked.rest}/metrics") as answer:
        lines = answer.read().decode().splitlines()
    found = (
        line.partition('flatout_cpu_seconds_total{process="')[2] for line in lines if line.startswith("flatout_cpu_seconds")
    )
    return {name: float(value) for name, _, value in (one.partition('"} ') for one in found)}


def tensors(asked: argparse.Namespace, described: Any) -> list[Any]:
    import numpy as np
    import tritonclient.grpc as triton

    row, found = json.loads(asked.row.read_text()), []
    for one in described:
        is_text = one.datatype == "BYTES"
        array = np.array([str(row[one.name]).encode()], object) if is_text else np.array([row[one.name]], np.float64)
        found.append(triton.InferInput(one.name, [1], one.datatype).set_data_from_numpy(array))
    return found


def plain(value: Any) -> Any:
    return value.decode() if isinstance(value, bytes) else value.item()


def stringed(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """64-bit numbers are text in the JSON of protobuf."""
    return [{**one, "shape": [str(size) for size in one["shape"]]} for one in found]


def rest(asked: argparse.Namespace, path: str, body: Any = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    with urllib.request.urlopen(urllib.request.Request(f"http://{asked.rest}{path}", data)) as answer:
        return json.load(answer)


def told(what: str, is_so: bool) -> None:
    print(("ok    " if is_so else "WRONG ") + what, flush=True)
    if not is_so:
        sys.exit(1)


if __name__ == "__main__":
    main()
