"""A service that looks after itself, on real taxi trips: some minutes on two cores.

    python production.py FOLDER-WITH-THE-TRIPS     (trips.py says which files, and where they are from)

v1 is served; v2, which is as good, is promoted by evidence; v3, whose table was made with a mistake, is rolled back; trips of
another year are found as drift; and the manifests for Kubernetes are checked against its schemas. Requests are real ones over
HTTP, and whether there was a tip is told later, by POST /feedback.
"""

from __future__ import annotations

import http.client
import json
import random
import shlex
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import trips
from pyarrow import Table, parquet

HERE = Path(__file__).parent
FILES = ("tips.yaml", "retrain.yaml", "newest.py", "trips.py")
CLIENTS, LABELS, ROWS = 6, 100, 64
CANARY = ("--share", "25%", "--latency-slack", "5 ms")  # both versions and all clients share the same cores
PERIOD_S = 4  # of drift: here a "day" takes seconds
PATIENCE_S = 600


def main(folder: Path, data: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name in FILES:
        shutil.copy(HERE / name, folder)
    monday, tuesday = trips.of_2022(data, 10), trips.of_2022(data, 11)

    title("v1: trained on the trips of 10 January 2022")
    package(folder, "v1", monday)
    title("v2: the same trips, a larger model")
    package(folder, "v2", monday, "model.hidden=64", "budget=3 epochs")
    title("v3: a mistake in the table: card and cash are swapped. Its own held-out rows can't show that")
    package(folder, "v3", trips.of_2022(data, 10, trips.SWAPPED))

    title("v2 beside v1: a quarter of the requests, trips of 11 January")
    with served(folder, "tips=v1", "--canary", "v2", *CANARY, "--needs-labels") as url:
        judged(url, tuesday, "promoted")
    flatout(folder, "receipt", "served-state")

    title("v3 beside v2, and the rows that are served against those of the training")
    drift = ("--drift", f"{PERIOD_S} s", "--drift-allowed", "0.03")
    with served(folder, "tips=v2", "--canary", "v3", *CANARY, *drift) as url:
        judged(url, tuesday, "rolled back")
        print("trips of 11 January 2022:", moved(url, tuesday, 3))
        print("trips of March 2019:", moved(url, trips.of_2019(data), 10))
        title("what one server holds here, and the manifests from that")
        rows = tuesday.select(trips.INPUTS).slice(0, 1000).to_pylist()
        (folder / "trips.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
        measure = (url, "--rows", "trips.jsonl", "--find", "--slo", "p99 100 ms", "--rate", "300/s", "--for", "2 s", "--json")
        (folder / "load.json").write_text(flatout(folder, "load", *measure))
    manifests(folder)


# ---- versions ----


def package(folder: Path, name: str, table: Table, *changes: str) -> None:
    parquet.write_table(table, folder / "trips.parquet")
    flatout(folder, "run", "tips.yaml", f"name={name}", *changes, "--planning", "off", "--quiet")
    flatout(folder, "export", "last", "--out", name)


def flatout(folder: Path, *words: str) -> str:
    """Its output; it is printed, too, unless it is JSON."""
    print(f"$ flatout {shlex.join(words)}", flush=True)
    done = subprocess.run([sys.executable, "-m", "flatout", *words], cwd=folder, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        raise SystemExit(f"that ended with {done.returncode}")
    if "--json" not in words:
        print(done.stdout, end="", flush=True)
    return done.stdout


@contextmanager
def served(folder: Path, *words: str) -> Iterator[str]:
    """The address of a server that ends with the block. Its lines are printed as they come."""
    print(f"$ flatout serve {shlex.join(words)}", flush=True)
    command = [sys.executable, "-u", "-m", "flatout", "serve", *words, "--port", "0"]
    server = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    found: list[str] = []
    opened = threading.Event()

    def listen() -> None:
        assert server.stdout is not None
        for line in server.stdout:
            print(f"  server: {line}", end="", flush=True)
            if line.startswith("serving") and "http://" in line:
                found.append(line[line.index("http://") :].strip())
                opened.set()
        opened.set()  # it has ended

    listening = threading.Thread(target=listen, daemon=True)
    listening.start()
    opened.wait()
    if not found:
        raise SystemExit("the server has ended; its last lines say why")
    try:
        yield found[0]
    finally:
        server.terminate()
        listening.join()  # until it has said its last line
        server.communicate()


# ---- clients ----


class Riders:
    """Clients that ask about one trip after the other. Whether there was a tip they tell later, a hundred trips at once."""

    def __init__(self, url: str, table: Table) -> None:
        self._url, self._rows = url, table.to_pylist()
        self._over, self._lock = threading.Event(), threading.Lock()
        self.asked, self.failed = 0, 0
        self._clients = [threading.Thread(target=self._ask, args=(number,), daemon=True) for number in range(CLIENTS)]

    def __enter__(self) -> Riders:
        for client in self._clients:
            client.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        for client in self._clients:
            client.join()

    def _ask(self, number: int) -> None:
        chance = random.Random(number)
        labels: list[dict[str, str]] = []
        with connected(self._url) as connection:
            while not self._over.is_set():
                trip = chance.choice(self._rows)
                status, headers = post(connection, "/predict", {name: trip[name] for name in trips.INPUTS})
                with self._lock:
                    self.asked += 1
                    self.failed += status != 200
                if "X-Flatout-Id" in headers:  # of an answer that a canary is judged by
                    labels.append({"id": headers["X-Flatout-Id"], "label": trip["tip"]})
                if len(labels) == LABELS:
                    post(connection, "/feedback", labels)
                    labels = []


def connected(url: str) -> closing[http.client.HTTPConnection]:
    return closing(http.client.HTTPConnection(url.removeprefix("http://")))


def post(connection: http.client.HTTPConnection, path: str, content: Any) -> tuple[int, Any]:
    connection.request("POST", path, json.dumps(content), {"Content-Type": "application/json"})
    answer = connection.getresponse()
    answer.read()
    return answer.status, answer.headers


def get(url: str, path: str) -> Any:
    with connected(url) as connection:
        connection.request("GET", path)
        return json.loads(connection.getresponse().read())


def judged(url: str, table: Table, verdict: str) -> None:
    """Asks until the canary is judged. SystemExit if the verdict is another one, or a request failed."""
    until_s = shown_s = time.monotonic()
    with Riders(url, table) as riders:
        while (canary := get(url, "/canary"))["status"] == "running" and time.monotonic() - until_s < PATIENCE_S:
            if time.monotonic() - shown_s > 5:
                shown_s = time.monotonic()
                missing = ", ".join(canary["not_enough_evidence_yet"])
                print(
                    f"  {canary['requests']['canary']:,} requests of the canary; not enough evidence yet: {missing}", flush=True
                )
            time.sleep(0.2)
    print(f"{canary['status']}; {riders.asked:,} requests, {riders.failed} of them failed", flush=True)
    if canary["status"] != verdict or riders.failed:
        raise SystemExit(f"expected: {verdict}, and no failed request; GET /canary says {json.dumps(canary, indent=2)}")


def moved(url: str, table: Table, periods: int) -> str:
    """Asks about random trips, many in a request, for some periods or until there is an alarm. Which columns moved."""
    chance, rows, before = random.Random(0), table.to_pylist(), get(url, "/drift")["tips"]
    with connected(url) as connection:
        while (now := get(url, "/drift")["tips"])["periods"] < before["periods"] + periods:
            if now["alarms"] > before["alarms"]:
                effects = sorted(((now["effects"][name], name) for name in now["moved"]), reverse=True)
                return "shares have moved in " + ", ".join(f"{name} by {100 * effect:.0f} points" for effect, name in effects)
            for _ in range(20):
                some = [{name: trip[name] for name in trips.INPUTS} for trip in chance.choices(rows, k=ROWS)]
                post(connection, "/predict", some)
                time.sleep(0.01)
    return f"no alarm in {periods} periods"


# ---- Kubernetes ----


def manifests(folder: Path) -> None:
    goal, image = ("--slo", "p99 100 ms"), ("--image", "registry.example.org/tips:2")
    measured = ("--measured", "load.json", "--memory", "1Gi", "--cpus", "2")
    flatout(folder, "fleet", "manifest", "serve", "v2", *image, *goal, *measured, "--name", "tips", "--out", "service.yaml")
    job = ("--image", "registry.example.org/train:2", "--claim", "tips", "--every", "1 h", "--out", "retraining.yaml")
    flatout(folder, "fleet", "manifest", "pipeline", "retrain.yaml", *job)
    try:
        import kubernetes_validate
    except ImportError:
        print("to check it here: pip install kubernetes-validate; on a cluster: kubectl apply --dry-run=server -f service.yaml")
        return
    import yaml

    for file in ("service.yaml", "retraining.yaml"):
        for one in yaml.safe_load_all((folder / file).read_text()):
            kubernetes_validate.validate(one, "1.31", strict=True)
            print(f"{file}: {one['kind']} is valid in Kubernetes 1.31")


def title(words: str) -> None:
    print(f"\n== {words}", flush=True)


if __name__ == "__main__":
    if len(sys.argv) != 2 or not Path(sys.argv[1]).is_dir():
        raise SystemExit(f"{__doc__}\ngive the folder with the trips; {trips.__doc__}")
    main(Path("built"), Path(sys.argv[1]).resolve())
