"""On two CPU cores: 10 times LitServe's rate with JSON rows and 20 times with tensors, a lower p99 than peers, 40 us a request.

Every server is started for its turn, on the same cores as the load generator, and its answer to one row is checked first.

- `flatout serve` gets raw rows as JSON at /predict (it prepares them), and prepared tensors by the Open Inference Protocol.
- LitServe, uvicorn and FastAPI get prepared rows in both forms, so they have less to do: JSON lists of numbers, or bytes.
- LitServe and uvicorn run onnxruntime with the options that flatout uses; FastAPI runs PyTorch, as a first version does.
- Settings of LitServe (batches, timeout, queue, processes) and of uvicorn (processes) are tried in turn; the best one is used.

The highest rate of a server is that of a closed loop, of tables with 64 connections or 256, whichever gives more. p99 is
measured in an open loop, from the scheduled time of a request, at half of the lowest of the highest rates, the same for all;
and again at half of each server's own.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from evidence import NEEDS_GPU, Bar, Report, options, take_turns
from packages import export_seconds, trained

import flatout as fo
from flatout.packaging.onnx_front import prepared_inputs
from flatout.packaging.package import Package
from flatout.packaging.runtimes.choice import fastest, runtime_named
from flatout.packaging.runtimes.onnxruntime_runtime import from_prepared

WANTED = ("litserve", "fastapi", "uvicorn[standard]")
CONNECTIONS, MANY_CONNECTIONS = 64, 256
CNN_CONNECTIONS = 16
ROWS = 1024
OIP_TYPES = {"float32": "FP32", "int32": "INT32", "int64": "INT64", "uint8": "UINT8"}
LITSERVE = (  # what its documentation advises to tune, a few values of each
    {"batch_rows": 1, "batch_timeout_s": 0.0, "processes": 1, "fronts": 1, "fast_queue": False},
    {"batch_rows": 1, "batch_timeout_s": 0.0, "processes": 2, "fronts": 2, "fast_queue": True},
    {"batch_rows": 16, "batch_timeout_s": 0.001, "processes": 1, "fronts": 1, "fast_queue": True},
    {"batch_rows": 64, "batch_timeout_s": 0.005, "processes": 1, "fronts": 1, "fast_queue": False},
    {"batch_rows": 64, "batch_timeout_s": 0.005, "processes": 1, "fronts": 2, "fast_queue": True},
)
UVICORN = ({"processes": 1}, {"processes": 2})


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


@dataclass(frozen=True)
class Server:
    """One that can be started: flatout, or a peer with its settings."""

    name: str
    command: list[str]
    body: Body
    case: Case
    ready: str  # a path that answers 200

    @contextmanager
    def running(self) -> Iterator[tuple[str, int]]:
        """Its address and process id, when it is ready and its answer is right."""
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        command = [part.replace("{port}", str(port)) for part in self.command]
        with (self.case.place / "server.log").open("w") as said:
            process = subprocess.Popen(command, stdout=said, stderr=said, env=environment(), start_new_session=True)
        url = f"http://127.0.0.1:{port}"
        try:
            self._wait(process, url)
            check_answer(self.body, url, self.case.expected())
            yield url, process.pid
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                print(f"{self.name} does not end on SIGTERM", file=sys.stderr)
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # LitServe leaves processes behind
            process.wait()

    def _wait(self, process: subprocess.Popen[bytes], url: str) -> None:
        until_s = time.monotonic() + 120
        while time.monotonic() < until_s:
            if process.poll() is not None:
                break
            try:
                request(url + self.ready, self.body if self.ready == self.body.path else None)
                return
            except OSError:  # not yet there, or not yet ready
                time.sleep(0.1)
        said = (self.case.place / "server.log").read_text()[-2000:]
        raise RuntimeError(f"{self.name} did not start: {said}")


def environment() -> dict[str, str]:
    """flatout as it is here, also for peers: one of them runs a package's program."""
    ours = str(Path(fo.__file__).parent.parent)
    return {**os.environ, "PYTHONPATH": os.pathsep.join([ours, os.environ.get("PYTHONPATH", "")])}


def request(url: str, body: Body | None) -> tuple[bytes, Mapping[str, str]]:
    content = None if body is None else body.file.read_bytes()
    asked = urllib.request.Request(url, data=content, headers=dict(body.headers) if body is not None else {})
    with urllib.request.urlopen(asked, timeout=10) as answer:
        return answer.read(), answer.headers


def check_answer(body: Body, url: str, expected: Mapping[str, np.ndarray[Any, Any]]) -> None:
    content, headers = request(url + body.path, body)
    probability = expected["probability"]
    if headers["Content-Type"].startswith("application/json"):
        came = np.array(json.loads(content)["probability"], np.float32)
    else:  # prediction (with flatout: its name too), probability, ...
        rest = sum(column.nbytes for name, column in expected.items() if name not in ("prediction", "probability"))
        end = len(content) - rest
        came = np.frombuffer(content[end - probability.nbytes : end], np.float32)
    if not np.allclose(came, probability, atol=1e-5):
        raise RuntimeError(f"{url} answers {came}, the package's own samples say {probability}")


def wrk(body: Body, url: str, connections: int, seconds: float) -> float:
    """Answers per second in a closed loop."""
    script = body.file.with_suffix(body.file.suffix + ".lua")
    headers = "".join(f'wrk.headers["{name}"] = "{value}"\n' for name, value in body.headers.items())
    script.write_text(f'wrk.method = "POST"\n{headers}wrk.body = io.open("{body.file}", "rb"):read("*all")\n')
    command = ["wrk", "-t1", f"-c{connections}", f"-d{seconds:.0f}s", "-s", str(script), url + body.path]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    rate = re.search(r"Requests/sec:\s+([\d.]+)", said)
    if rate is None or "Non-2xx" in said or "Socket errors" in said:
        raise RuntimeError(f"wrk says something else than expected: {said}")
    return float(rate[1])


def family(pid: int) -> list[int]:
    """This process and all below it."""
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                stat = (entry / "stat").read_text()
            except OSError:  # it has just ended
                continue
            parents.setdefault(int(stat.rpartition(")")[2].split()[1]), []).append(int(entry.name))
    found = [pid]
    for one in found:
        found.extend(parents.get(one, []))
    return found


def cpu_s(pid: int) -> float:
    ticks = 0
    for one in family(pid):
        fields = Path(f"/proc/{one}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


# ---- servers ----


def ours(case: Case, body: Body) -> Server:
    command = [sys.executable, "-m", "flatout", "serve", f"{case.name}={case.package.path}", "--port", "{port}"]
    return Server("flatout", command, body, case, "/v2/health/ready")


def peer(name: str, python: Path, case: Case, folder: Path, form: str, settings: Mapping[str, Any]) -> Server:
    script = Path(__file__).parent / ("_serving_litserve.py" if name == "litserve" else "_serving_peers.py")
    command = [str(python), str(script), name, str(folder), "{port}", json.dumps({"form": form, **settings})]
    body = case.for_peers(form)
    return Server(name, command, body, case, "/health" if name == "litserve" else body.path)


def peers_python(folder: Path) -> Path:
    """Of an environment with the peers, which takes everything else from this one."""
    python = folder / "bin" / "python"
    if not python.exists():
        print(f"installing {', '.join(WANTED)} into {folder}", file=sys.stderr)
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        (site,) = folder.glob("lib/python*/site-packages")
        (site / "shared.pth").write_text(sysconfig.get_path("purelib") + "\n")
        try:
            subprocess.run([str(python), "-m", "pip", "install", "-q", *WANTED], check=True)
        except subprocess.CalledProcessError:
            shutil.rmtree(folder)
            raise
    return python


def versions(python: Path) -> dict[str, str]:
    code = "import importlib.metadata as m, json, sys; print(json.dumps({name: m.version(name) for name in sys.argv[1:]}))"
    names = ("litserve", "fastapi", "uvicorn", "uvloop", "httptools", "onnxruntime", "torch")
    said = subprocess.run([str(python), "-c", code, *names], check=True, capture_output=True).stdout
    found: dict[str, str] = json.loads(said)
    return found


def best(report: Report, tried: list[tuple[Mapping[str, Any], Server]], what: str, connections: int, seconds: float) -> Server:
    """The server whose settings gave the highest rate."""
    found = []
    for settings, server in tried:
        with server.running() as (url, _):
            wrk(server.body, url, connections, 1)
            found.append((wrk(server.body, url, connections, seconds), settings, server))
        print(f"{what} {server.name} {settings}: {found[-1][0]:,.0f}/s", file=sys.stderr, flush=True)
    _, settings, server = max(found, key=lambda one: one[0])
    tuning = report.conditions.setdefault("tuning", {})
    tuning[f"{what}: {server.name}"] = {
        "taken": dict(settings), "tried": [{**one, "requests_per_s": round(each)} for each, one, _ in found]
    }  # fmt: skip
    return server


# ---- measurements ----


def rate_of(server: Server, connections: int, seconds: float) -> float:
    with server.running() as (url, _):
        wrk(server.body, url, connections, 1)
        return wrk(server.body, url, connections, seconds)


def highest_of(server: Server, seconds: float) -> float:
    with server.running() as (url, _):
        wrk(server.body, url, CONNECTIONS, 1)
        rates = [wrk(server.body, url, CONNECTIONS, seconds)]
        with suppress(RuntimeError):  # a server that can't answer so many
            rates.append(wrk(server.body, url, MANY_CONNECTIONS, seconds))
    print(f"{server.name}: {', '.join(f'{rate:,.0f}/s' for rate in rates)} with 64 and 256 connections", flush=True)
    return max(rates)


def compare_rates(report: Report, adult: Case, folder: Path, python: Path, asked: argparse.Namespace, seconds: float) -> None:
    for form, own, times in (("json", adult.raw_json(), 10.0), ("binary", adult.tensors(1), 20.0)):
        what = f"table, {form}"
        tunings = LITSERVE[-2:] if asked.quick else LITSERVE
        lit = best(report, [(one, peer("litserve", python, adult, folder, form, one)) for one in tunings], what, CONNECTIONS, 3)
        uvi = best(report, [(one, peer("uvicorn", python, adult, folder, form, one)) for one in UVICORN], what, CONNECTIONS, 3)
        fast = best(report, [(one, peer("fastapi", python, adult, folder, form, one)) for one in UVICORN], what, CONNECTIONS, 3)
        servers = {"flatout": ours(adult, own), "LitServe": lit, "onnxruntime + uvicorn": uvi, "FastAPI + torch": fast}
        arms = {f"{what}: {name}": partial(highest_of, server, seconds) for name, server in servers.items()}
        for name, values in take_turns(arms, asked.repeats, asked.within).items():
            report.arm(name, "requests/s", values)
        report.ratio(f"{what}: flatout over LitServe", f"{what}: flatout", f"{what}: LitServe", at_least=times)
        for other in ("onnxruntime + uvicorn", "FastAPI + torch"):
            report.ratio(f"{what}: flatout over {other}", f"{what}: flatout", f"{what}: {other}", at_least=1.0)


def loaded(server: Server, rate: float, seconds: float) -> float:
    """p99 in milliseconds, from the scheduled times."""
    with server.running() as (url, _):
        wrk(server.body, url, CNN_CONNECTIONS, 1)
        command = [sys.executable, "-m", "flatout", "load", *server.body.for_load(url), "--rate", f"{rate:.0f}/s",
                   "--for", f"{seconds:.0f}s", "--json"]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment())
        found = json.loads(done.stdout)
        if found["generator"]["was_the_limit"]:
            print(f"the generator was the limit: {found['generator']['why']}", file=sys.stderr)
        if found["statuses"].keys() - {"200"}:
            print(f"{server.name} at {rate:.0f}/s: {found['statuses']}", file=sys.stderr)
        return float(found["latency_ms"]["p99"])


def compare_latencies(report: Report, cnn: Case, folder: Path, python: Path, asked: argparse.Namespace, seconds: float) -> None:
    what, form = "CNN", "binary"
    tunings = LITSERVE[:3:2] if asked.quick else LITSERVE
    lit = best(report, [(one, peer("litserve", python, cnn, folder, form, one)) for one in tunings], what, CNN_CONNECTIONS, 3)
    uvi = best(report, [(one, peer("uvicorn", python, cnn, folder, form, one)) for one in UVICORN], what, CNN_CONNECTIONS, 3)
    servers = {"flatout": ours(cnn, cnn.tensors(1)), "LitServe": lit, "onnxruntime + uvicorn": uvi}
    arms = {name: partial(rate_of, server, CNN_CONNECTIONS, seconds) for name, server in servers.items()}
    highest = {}
    for name, values in take_turns(arms, asked.repeats, asked.within).items():
        highest[name] = report.arm(f"CNN, highest rate: {name}", "requests/s", values).median
    same = min(highest.values()) / 2
    own = {name: rate / 2 for name, rate in highest.items()}
    report.conditions["CNN: rates of p99"] = {"the same for all": same, **own}
    for at, rates in (("p99 at the same rate", dict.fromkeys(servers, same)), ("p99 at half of its own", own)):
        timed = {f"CNN, {at}: {name}": partial(loaded, server, rates[name], 2 * seconds) for name, server in servers.items()}
        for name, values in take_turns(timed, asked.repeats, asked.within).items():
            report.arm(name, "ms", values)
        for other in ("LitServe", "onnxruntime + uvicorn"):
            claim = f"CNN, {at}: {other} over flatout"
            report.ratio(claim, f"CNN, {at}: {other}", f"CNN, {at}: flatout", at_least=1.0)


def bare_runtime(adult: Case, rows: int) -> tuple[str, Callable[[], object]]:
    """The runtime that flatout takes for batches of this size, with the executor's threads, and no server around it."""
    device = torch.device("cpu")
    chosen = fastest(adult.package.measured(device, None), rows)
    given = {name: torch.from_numpy(column.copy()) for name, column in adult.row(rows).items()}
    threads = torch.get_num_threads()
    torch.set_num_threads(max(2, len(os.sched_getaffinity(0)) - 1))  # as the executor has it
    runtime = runtime_named(chosen.name).load(adult.package.parts(device))
    torch.set_num_threads(threads)
    return chosen.name, lambda: runtime.run(given)


def price_of_many_rows(report: Report, adult: Case, asked: argparse.Namespace, seconds: float) -> None:
    """Requests of 1,024 rows, as bytes, on four connections, against the runtime called with the same rows in a loop."""
    runtime, run = bare_runtime(adult, ROWS)

    def bare() -> float:
        began_s, calls = time.perf_counter(), 0
        while time.perf_counter() - began_s < seconds:
            run()
            calls += 1
        return (time.perf_counter() - began_s) / calls / ROWS * 1e6

    def served(connections: int) -> float:
        server = ours(adult, adult.tensors(ROWS))
        with ours(adult, adult.tensors(1)).running() as (url, _):
            wrk(server.body, url, connections, 1)
            return 1e6 / ROWS / wrk(server.body, url, connections, seconds)

    arms: dict[str, Callable[[], float]] = {
        f"1,024 rows: {runtime} alone": bare,
        "1,024 rows: served, 4 connections": partial(served, 4),
        "1,024 rows: served, 1 connection": partial(served, 1),
    }
    for name, values in take_turns(arms, asked.repeats, asked.within).items():
        report.arm(name, "us a row", values)
    for count in ("4 connections", "1 connection"):
        found = report.arms[f"1,024 rows: served, {count}"]["median"] / report.arms[f"1,024 rows: {runtime} alone"]["median"]
        report.bars.append(Bar(f"1,024 rows: price over the bare runtime, {count}", found - 1, 0.4, at_least=False))


def price_of_one_row(report: Report, adult: Case, asked: argparse.Namespace, seconds: float) -> None:
    """CPU time of all the server's processes for each request, and of the runtime alone that is called with each row."""
    runtime, run = bare_runtime(adult, 1)
    alone = f"one row: {runtime} alone"

    def bare_us() -> float:
        began_s, spent_s, calls = time.perf_counter(), time.process_time(), 0
        while time.perf_counter() - began_s < seconds:
            run()
            calls += 1
        return (time.process_time() - spent_s) / calls * 1e6

    bodies = {"tensors": adult.tensors(1), "JSON at /predict": adult.raw_json()}

    def spent_us(body: Body, connections: int) -> float:
        with ours(adult, body).running() as (url, pid):
            wrk(body, url, connections, 1)
            before_s, began_s = cpu_s(pid), time.monotonic()
            rate = wrk(body, url, connections, seconds)
            return (cpu_s(pid) - before_s) / (rate * (time.monotonic() - began_s)) * 1e6

    arms: dict[str, Callable[[], float]] = {alone: bare_us}
    for name, body in bodies.items():
        for count in (16, 64, 256):
            arms[f"one row, {name}, {count} connections"] = partial(spent_us, body, count)
    for name, values in take_turns(arms, asked.repeats, asked.within).items():
        report.arm(name, "us of CPU", values)
    for count in (16, 64, 256):
        name = f"one row, tensors, {count} connections"
        report.bar(f"CPU time a request, us: {name}", name, 40.0, at_least=False)  # all of it, the model's own included
        over = report.arms[name]["median"] - report.arms[alone]["median"]
        report.bars.append(Bar(f"{name}: CPU time over the bare runtime, us", over, 40.0, at_least=False))


def packaged(name: str, example: str, given: Path | None, place: Path) -> Case:
    package = place / f"package-{name}"
    if given is None:
        export_seconds(trained(example, place), package, place)
    else:
        shutil.copytree(given, package)  # onnx does not read weights that have several hard links
    return Case(name, fo.load(package), place)


def main() -> int:
    parser = options(__doc__, repeats=5)
    parser.add_argument("--adult", type=Path, help="the package of examples/adult.yaml; made if not given")
    parser.add_argument("--cnn", type=Path, help="the package of examples/fashion_mnist.yaml; made if not given")
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "flatout-benchmarks" / "serving-peers"
    parser.add_argument("--peers", type=Path, default=cache, help=f"an environment with the peers; made if absent ({cache})")
    parser.add_argument(
        "--only", choices=["rates", "latencies", "many", "one"], action="append", help="some of the measurements"
    )
    asked = parser.parse_args()
    if shutil.which("wrk") is None:
        print("this benchmark needs wrk, which is not installed (Debian: apt install wrk)", file=sys.stderr)
        return NEEDS_GPU
    if asked.quick:
        asked.repeats = 2
    seconds = 2 if asked.quick else 5
    wanted = asked.only or ["one", "many", "rates", "latencies"]
    conditions: dict[str, Any] = {
        "connections": [CONNECTIONS, MANY_CONNECTIONS],
        "connections of the CNN": CNN_CONNECTIONS,
        "seconds": seconds,
    }
    report = Report("serving_cpu", (__doc__ or "").partition("\n")[0], torch.device("cpu"), conditions)
    with tempfile.TemporaryDirectory() as temporary:
        place = Path(temporary)
        os.environ.setdefault("FLATOUT_CACHE", str(place / "cache"))
        adult = packaged("adult", "adult.yaml", asked.adult, place)
        if "one" in wanted:
            price_of_one_row(report, adult, asked, seconds)
        if "many" in wanted:
            price_of_many_rows(report, adult, asked, seconds)
        if "rates" in wanted or "latencies" in wanted:
            python = peers_python(asked.peers)
            conditions["versions"] = versions(python)
        if "rates" in wanted:
            compare_rates(report, adult, adult.peer_folder(), python, asked, seconds)
        if "latencies" in wanted:
            cnn = packaged("cnn", "fashion_mnist.yaml", asked.cnn, place)
            compare_latencies(report, cnn, cnn.peer_folder(), python, asked, seconds)
    return report.finish(asked)


if __name__ == "__main__":
    sys.exit(main())
