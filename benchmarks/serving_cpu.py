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
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import torch
from _serving_cases import Body, Case, packaged
from _serving_load import cpu_s, wrk
from _serving_servers import Server, environment, ours, peer, peers_python, versions
from evidence import NEEDS_GPU, Bar, Report, options, take_turns

from flatout.packaging.runtimes.choice import fastest, runtime_named

CONNECTIONS, MANY_CONNECTIONS = 64, 256
CNN_CONNECTIONS = 16
ROWS = 1024
LITSERVE = (  # what its documentation advises to tune, a few values of each
    {"batch_rows": 1, "batch_timeout_s": 0.0, "processes": 1, "fronts": 1, "fast_queue": False},
    {"batch_rows": 1, "batch_timeout_s": 0.0, "processes": 2, "fronts": 2, "fast_queue": True},
    {"batch_rows": 16, "batch_timeout_s": 0.001, "processes": 1, "fronts": 1, "fast_queue": True},
    {"batch_rows": 64, "batch_timeout_s": 0.005, "processes": 1, "fronts": 1, "fast_queue": False},
    {"batch_rows": 64, "batch_timeout_s": 0.005, "processes": 1, "fronts": 2, "fast_queue": True},
)
UVICORN = ({"processes": 1}, {"processes": 2})


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
