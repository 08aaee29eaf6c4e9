"""The page of a run with a million logged values is below 200 kB, made within 3 s and drawn by a browser within half a second.

Each drawing has a browser of its own that has just started; an empty page shows what that takes. A million log points, with
five values each, are measured as well. The processor time of this process is shown next to the wall
time: other processes of the machine slow the page down.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import zlib
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import torch
from evidence import Bar, Report, options, take_turns

import flatout as fo
from flatout.base.sealed import sealed
from flatout.recipe.load import recipe_from

LOG_POINTS = 1_000_000
CURVES = 5  # of each log point: loss, learning rate, gradient norm, speed, memory
EVALUATED = 1000  # evaluations
SPIKE = 0.777  # where in the run one log point has a loss a thousand times as high
WAIT_S = 60
EMPTY = '<!DOCTYPE html><html><head><meta http-equiv="Content-Security-Policy" content=""></head><body>Hello</body></html>'
# Tells when the page was drawn: two frames after its own script has run.
PROBE = """<script>requestAnimationFrame(() => requestAnimationFrame(() => {
  const charts = document.querySelectorAll('.chart svg path').length;
  fetch('/drawn', {method: 'POST', body: JSON.stringify({ms: performance.now() - performance.timing.responseEnd
    + performance.timing.navigationStart, charts})});
}))</script></body>"""


def events(count: int) -> Iterator[bytes]:
    """A log as the engine writes it."""
    rng, at = random.Random(0), 1.75e9
    yield sealed({"kind": "planned", "t": 0.0, "at": at, "run": "long", "model": "mlp", "machine": "a CPU"})
    yield sealed({"kind": "started", "t": 0.1, "at": at + 0.1, "total_steps": 10 * count})
    for n in range(1, count + 1):
        loss = 2 * math.exp(-5 * n / count) + rng.random() * 0.1 + (2000.0 if n == int(SPIKE * count) else 0.0)
        line = (
            f'{{"kind": "step", "t": {n / 20:.6f}, "at": {at + n / 20:.3f}, "step": {10 * n}, "samples": {640 * n}, '
            f'"epoch": {n * 0.0128!r}, "done": {n / count!r}, "loss": {loss!r}, "lr": {3e-4 * (1 - n / count)!r}, '
            f'"grad_norm": {rng.random()!r}, "samples_per_s": {12000 + 900 * rng.random()!r}, "tokens_per_s": null, '
            f'"memory_bytes": 381571072, "power_w": null, "skipped": 0, "elapsed_s": {n / 20!r}'
        ).encode()
        yield line + b', "crc": "%08x"}' % zlib.crc32(line + b"}")
        if n % max(1, count // EVALUATED) == 0:
            metrics = {"loss": loss, "accuracy": 1 - math.exp(-5 * n / count)}
            yield sealed(
                {"kind": "evaluation", "t": n / 20, "at": at + n / 20, "step": 10 * n, "metrics": metrics, "best": True}
            )
    yield sealed({"kind": "finished", "t": count / 20, "at": at + count / 20, "reason": "budget spent", "steps": 10 * count})


def long_run(runs: Path, short: fo.Run, count: int) -> Path:
    """A run that was trained, with a long log in place of its own."""
    folder = runs / f"long-{count}"
    shutil.copytree(short.path, folder)
    with (folder / "events.jsonl").open("wb") as log:
        log.writelines(line + b"\n" for line in events(count))
    return folder


def made_in_s(folder: Path, out: Path, processor_s: list[float]) -> float:
    began_s, began_cpu_s = time.perf_counter(), time.process_time()
    fo.report(folder, out=out)
    processor_s.append(time.process_time() - began_cpu_s)
    return time.perf_counter() - began_s


class Browser:
    """Serves a page to Chromium, and waits for the page to say when it was drawn."""

    def __init__(self, program: str, text: str) -> None:
        self._program = program
        start = text.index('<meta http-equiv="Content-Security-Policy"')  # which would forbid the probe
        text = text[:start] + text[text.index(">", start) + 1 :]
        self._page = text.replace("</body>", PROBE).encode()
        self.complaints = 0
        self.curves = 0

    def drawn_in_s(self) -> float:
        told: list[dict[str, float]] = []
        heard = threading.Event()
        page = self._page

        class Answers(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                found = self.path == "/"
                self.send_response(200 if found else 204)
                self.send_header("Content-Type", "text/html")
                self.end_headers()
                self.wfile.write(page if found else b"")

            def do_POST(self) -> None:
                told.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
                self.send_response(204)
                self.end_headers()
                heard.set()

            def log_message(self, format: str, *words: object) -> None:
                pass

        server = HTTPServer(("127.0.0.1", 0), Answers)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
            quiet = ["--headless=new", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--window-size=1280,900"]
            address = f"http://127.0.0.1:{server.server_address[1]}/"
            command = [self._program, *quiet, "--remote-debugging-port=0", f"--user-data-dir={profile}", address]
            shown = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
            try:
                if not heard.wait(WAIT_S):
                    raise RuntimeError(f"Chromium did not draw the page within {WAIT_S} s")
            finally:
                shown.terminate()
                said = shown.communicate()[1]
                server.shutdown()
        self.complaints += said.count("CONSOLE")
        self.curves = int(told[0]["charts"])
        return told[0]["ms"] / 1000


def measure(report: Report, asked: argparse.Namespace, folder: Path) -> None:
    small = asked.quick or asked.smoke
    log_points = 20_000 if small else LOG_POINTS
    repeats = 2 if small else asked.repeats
    recipe = {"data": "digits", "model": "mlp", "batch": 64, "lr": 3e-3, "budget": "40 steps", "evaluate": "10 steps"}
    short = fo.run(recipe_from(recipe, folder), runs=folder / "runs", cache=folder / "cache", planning="off", quiet=True)
    million = long_run(folder / "runs", short, log_points)
    values = long_run(folder / "runs", short, log_points // CURVES)
    report.conditions = {
        "log points": log_points,
        "values of each": CURVES,
        "log, bytes": (million / "events.jsonl").stat().st_size,
        "evaluations": EVALUATED,
    }
    page, other = folder / "long.html", folder / "values.html"
    many, some = f"made, {log_points:,} log points", f"made, {log_points:,} values in {log_points // CURVES:,} log points"
    processor: dict[str, list[float]] = {name: [] for name in (many, some, "made, a run of 40 steps")}
    arms = {
        many: lambda: made_in_s(million, page, processor[many]),
        some: lambda: made_in_s(values, other, processor[some]),
        "made, a run of 40 steps": lambda: made_in_s(short.path, folder / "short.html", processor["made, a run of 40 steps"]),
    }
    take_turns(arms, 1)  # imports, and the logs in the page cache
    for name, seconds in take_turns(arms, repeats, asked.within).items():
        report.arm(name, "s", seconds)
        report.arm(f"{name}, processor time", "s", processor[name][-len(seconds) :])
    report.conditions["load average"] = list(os.getloadavg())
    report.bar(f"made, {log_points:,} values, s", some, 3.0, at_least=False)
    report.arm("size", "kB", [len(page.read_bytes()) / 1000] * 2)
    report.bar("size, kB", "size", 200, at_least=False)
    loss = json.loads(page.read_text().partition('id="curves">')[2].partition("</script>")[0])["charts"][0]["series"][0]["y"]
    report.bars.append(Bar("the spike of one log point is on the page", float(max(loss) > 2000), 1.0))
    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if program is None:
        print("no Chromium here: not drawn", file=sys.stderr)
        return
    browser, start = Browser(program, page.read_text(encoding="utf-8")), Browser(program, EMPTY)
    drawing = {"drawn in Chromium": browser.drawn_in_s, "an empty page in Chromium": start.drawn_in_s}
    take_turns(drawing, 1)
    for name, seconds in take_turns(drawing, repeats, asked.within).items():
        report.arm(name, "s", seconds)
    report.conditions["curves drawn"] = browser.curves
    report.conditions["Chromium"] = subprocess.run(
        [program, "--version"], capture_output=True, text=True, check=False
    ).stdout.strip()
    report.bar("drawn in Chromium, s", "drawn in Chromium", 0.5, at_least=False)
    report.bars.append(Bar("complaints of Chromium", float(browser.complaints), 0.0, at_least=False))


def main() -> int:
    asked = options(__doc__, repeats=9).parse_args()
    report = Report("report_page", str(__doc__), torch.device("cpu"))
    with tempfile.TemporaryDirectory() as folder:
        measure(report, asked, Path(folder))
    return report.finish(asked)


if __name__ == "__main__":
    raise SystemExit(main())
