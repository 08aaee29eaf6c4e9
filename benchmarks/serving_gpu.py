"""ResNet-50 over HTTP on one GPU: 4,000 JPEGs/s within p99 50 ms, 8,000 tensors/s within p99 20 ms, one photo in 4 ms."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from evidence import Report, gpu_or_leave, options

import flatout as fo
from flatout.packaging.export import export

SIZE, ROWS = 224, 320
HIGH, WIDE = 375, 500
START_S = 300.0


def drawn_photos(place: Path) -> Path:
    """Photos of 500x375 with edges and noise, about 100 kB each, where no real ones are given."""
    from PIL import Image

    draw = np.random.default_rng(0)
    for number in range(ROWS):
        small = draw.integers(0, 256, (HIGH // 15, WIDE // 10, 3), dtype=np.uint8)
        photo = Image.fromarray(small).resize((WIDE, HIGH), Image.Resampling.BICUBIC)
        noisy = np.clip(np.asarray(photo, np.int16) + draw.integers(-12, 13, (HIGH, WIDE, 3)), 0, 255).astype(np.uint8)
        folder = place / ("a" if number % 2 else "b")
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(noisy).save(folder / f"{number}.jpg", quality=90)
    return place


def resnet_package(place: Path, name: str, data: Any) -> Path:
    """Random weights after one step: a package is as fast whatever it has learned."""
    import torchvision  # only beside a CUDA build of torch

    recipe = fo.Recipe(data=data, model=torchvision.models.resnet50(), batch=8, lr=1e-4, budget="1 steps", evaluate=None,
                       settings={"precision": "bf16"})  # fmt: skip
    run = fo.run(recipe, runs=place / "runs", cache=None, planning="off")
    return export(run, place / name).package.path


@contextmanager
def serving(arguments: list[str], log: Path) -> Iterator[str]:
    """The address of a server that is ready."""
    with log.open("w") as said:
        command = [sys.executable, "-m", "flatout", "serve", *arguments, "--port", "0"]
        server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=said, text=True)
        assert server.stdout is not None
        try:
            line = server.stdout.readline()
            if " at http" not in line:
                raise RuntimeError(f"the server did not start: {log.read_text()[-500:]}")
            yield line.split(" at ")[1].strip()
        finally:
            server.send_signal(signal.SIGTERM)
            server.wait(60)


def load(url: str, *arguments: str) -> dict[str, Any]:
    """With `held`: whether the goal was."""
    command = [sys.executable, "-m", "flatout", "load", url, "--json", *arguments]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    found: dict[str, Any] = json.loads(done.stdout)
    return {**found, "held": done.returncode == 0}


def explained(url: str) -> str:
    with urllib.request.urlopen(f"{url}/explain") as answer:
        text: str = answer.read().decode()
    return text


def highest_rate(url: str, goal: str, begin: str, *body: str) -> tuple[float, dict[str, Any]]:
    found = load(url, "--find", "--slo", goal, "--rate", begin, "--for", "5s", *body)
    return float(found["highest_rate"] or 0.0), found


def main() -> int:
    parser = options(__doc__, repeats=1)
    parser.add_argument("--photos", type=Path, help="a folder with a folder of JPEGs a class")
    parser.add_argument("--keep", type=Path, help="a folder for packages and logs, used again if they are there")
    asked = parser.parse_args()
    device = gpu_or_leave(asked.smoke)
    report = Report("serving_gpu", str(__doc__), device)
    os.environ.setdefault("FLATOUT_CACHE", str((asked.keep or Path(tempfile.gettempdir())) / "flatout-cache"))
    with tempfile.TemporaryDirectory() as temporary:
        place = asked.keep or Path(temporary)
        place.mkdir(parents=True, exist_ok=True)
        photos = asked.photos or drawn_photos(place / "photos")
        one = sorted(photos.glob("*/*.jpg"))[0]
        if not (place / "jpeg").exists():
            resnet_package(place, "jpeg", fo.data.images(str(photos), size=SIZE, holdout=0.5))
        draw = np.random.default_rng(0)
        pixels = draw.integers(0, 256, (ROWS, 3, SIZE, SIZE), dtype=np.uint8)
        if not (place / "tensors").exists():
            data = fo.data.arrays(pixels, draw.integers(0, 1000, ROWS), holdout=0.8, normalize="auto")
            resnet_package(place, "tensors", data)
        began_s = time.monotonic()
        with serving([f"photos={place / 'jpeg'}", "--slo", "p99 50 ms"], place / "jpeg.log") as url:
            print(f"JPEG server ready after {time.monotonic() - began_s:.0f} s", flush=True)
            single = load(url, "--closed", "1", "--for", "5s", "--body", str(one))
            report.arm("one client, one photo: p50", "ms", [single["latency_ms"]["p50"]])
            rate, found = highest_rate(url, "p99 50 ms", "2000/s", "--body", str(one))
            print(json.dumps(found)[:3000], flush=True)
            held = load(url, "--rate", f"{rate:.0f}/s", "--for", "30s", "--slo", "p99 50 ms", "--body", str(one))
            print(explained(url), flush=True)
            report.arm("JPEGs within p99 50 ms, held for 30 s", "requests/s", [held["achieved_rate"] if held["held"] else 0.0])
        with serving([f"tensors={place / 'tensors'}", "--slo", "p99 20 ms"], place / "tensors.log") as url:
            rate, found = highest_rate(url, "p99 20 ms", "4000/s")
            print(json.dumps(found)[:3000], flush=True)
            held = load(url, "--rate", f"{rate:.0f}/s", "--for", "30s", "--slo", "p99 20 ms")
            print(explained(url), flush=True)
            report.arm(
                "tensors within p99 20 ms, held for 30 s", "requests/s", [held["achieved_rate"] if held["held"] else 0.0]
            )
    report.bar("JPEGs/s within p99 50 ms", "JPEGs within p99 50 ms, held for 30 s", 4000)
    report.bar("tensors/s within p99 20 ms", "tensors within p99 20 ms, held for 30 s", 8000)
    report.bar("one photo, ms", "one client, one photo: p50", 4.0, at_least=False)
    return report.finish(asked)


if __name__ == "__main__":
    torch.set_num_threads(max(1, (os.cpu_count() or 2) // 2))
    sys.exit(main())
