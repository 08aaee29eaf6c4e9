"""flatout and its peers as processes: started for a turn, checked by their answer to one row, and ended."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from _serving_cases import Body, Case

import flatout as fo

WANTED = ("litserve", "fastapi", "uvicorn[standard]")


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
