"""A bit flipped in any file of a finished run is told, or changes nothing shown: no other answer comes without a word."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from evidence import Bar, Report, options

import flatout as fo
from flatout.base.errors import FlatoutError
from flatout.base.manifest import Manifest
from flatout.base.tree import to_text
from flatout.measure.receipt import Receipt
from flatout.plan.receipt_view import receipt_doc
from flatout.recipe.load import read_recipe
from flatout.runs.record import load
from flatout.store.compare import compare_doc, runs_doc
from flatout.store.run_folder import find
from flatout.store.tensors import encode

RECIPE = """\
data: {digits: null, holdout: 0.2}
model: {mlp: {hidden: [32]}}
batch: 64
lr: 3e-3
evaluate: 1 epoch
budget: %d epochs
settings: {device: cpu, compile: off, keep_checkpoints: 2, checkpoint_every: 10 steps}
"""


def readers(runs: Path) -> dict[str, Callable[[], Any]]:
    """All that reads a run, each as text or bytes to compare. Loaded anew each time."""
    x = np.random.default_rng(0).normal(size=(8, 8, 8)).astype("float32")

    def run() -> fo.Run:
        return load("flips-1", runs=runs)

    def receipt() -> str:
        found = run().receipt
        return "" if found is None else to_text(receipt_doc("flips-1", found))

    def from_checkpoint() -> Any:
        weights = run().folder.weights_path
        aside = weights.with_name(".aside")
        weights.rename(aside)
        try:
            return [value.tobytes() for value in map(torch.Tensor.numpy, run().model().state_dict().values())]
        finally:
            aside.rename(weights)

    def states() -> Any:
        checkpoints = run().folder.checkpoints()
        found = [encode(checkpoints.load(step)) for step in checkpoints.steps()]
        return [checkpoints.best(), [(document, {n: t.numpy().tobytes() for n, t in t.items()}) for document, t in found]]

    return {
        "runs": lambda: to_text(runs_doc(runs)),
        "last": lambda: find(runs, "last").name,
        "runs show": lambda: [run().explain(), run().result, run().folder.read("recipe.json"), run().folder.about],
        "runs compare": lambda: to_text(compare_doc(find(runs, "flips-1"), find(runs, "flips-1"))),
        "receipt": receipt,
        "events": lambda: list(run().events()),
        "evaluate": lambda: fo.evaluate(run(), cache=None),
        "predict": lambda: {name: np.asarray(value).tobytes() for name, value in fo.predict(run(), x, cache=None).items()},
        "checkpoints": states,
        "predict from a checkpoint": from_checkpoint,
    }


def answer(read: Callable[[], Any]) -> tuple[str, str]:
    """(kind, text): `said` with what came, `told` with an error of flatout's own, or `traceback`."""
    try:
        return "said", repr(read())
    except FlatoutError as error:
        return "told", str(error)
    except Exception as error:
        return "traceback", f"{type(error).__name__}: {error}"


def names_it(text: str, path: Path, folder: Path) -> bool:
    """The file, or for a file of a checkpoint its folder."""
    parts = path.relative_to(folder).parts
    return any(part in text for part in (parts[-1], *parts[1:2]))


def flip(path: Path, place: int) -> bytes:
    content = path.read_bytes()
    flipped = bytearray(content)
    flipped[place // 8] ^= 1 << place % 8
    path.write_bytes(flipped)
    return content


def flip_all(runs: Path, flips: int, seed: int) -> dict[str, Any]:
    folder, chance = runs / "flips-1", random.Random(seed)
    reading = readers(runs)
    expected = {name: answer(read) for name, read in reading.items()}
    strange = {name: found for name, found in expected.items() if found[0] != "said"}
    if strange:
        raise RuntimeError(f"the run can't be read before a bit is flipped: {strange}")
    files = [path for path in sorted(folder.rglob("*")) if path.is_file() and path.stat().st_size]
    outcomes: Counter[str] = Counter()
    failures, by_file = [], {str(path.relative_to(folder)): Counter[str]() for path in files}
    for number in range(flips):
        path = files[number % len(files)]
        place = chance.randrange(path.stat().st_size * 8)
        content = flip(path, place)
        worst = "unchanged"
        for name, read in reading.items():
            kind, text = answer(read)
            if (kind, text) == expected[name]:
                continue
            silent = kind == "said" and not names_it(text, path, folder)
            found = "traceback" if kind == "traceback" else "wrong without a word" if silent else "told"
            if found != "told":
                failures.append({"file": path.name, "bit": place, "reader": name, "came": text[-400:]})
            if worst != "traceback" and not (worst == "wrong without a word" and found == "told"):
                worst = found
        path.write_bytes(content)
        outcomes[worst] += 1
        by_file[str(path.relative_to(folder))][worst] += 1
    return {"outcomes": dict(outcomes), "files": {n: dict(c) for n, c in by_file.items()}, "failures": failures[:20]}


def resume_cost(folder: Path, epochs: int) -> dict[str, float]:
    """Of a run that goes on from a checkpoint: the seconds until it does, those of them that the manifest took, and what the
    process takes to start, which the command that resumes waits for too."""
    recipe = folder / "resumed.yaml"
    recipe.write_text(RECIPE % epochs)
    asked: dict[str, Any] = {"runs": folder / "resumed", "cache": None, "planning": "off"}
    seen: list[float] = []

    def stop(event: Any) -> None:
        if event["kind"] == "evaluation" and not seen:
            seen.append(0.0)
            os.kill(os.getpid(), signal.SIGTERM)

    try:
        fo.run(read_recipe(recipe), observers=(stop,), **asked)
        raise RuntimeError("the run ended before it could be stopped")
    except FlatoutError:
        pass
    checked_s, plain = 0.0, {name: getattr(Manifest, name) for name in ("read", "check", "_append")}

    def timed(name: str) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            nonlocal checked_s
            began_s = time.perf_counter()
            try:
                return plain[name](*args)
            finally:
                checked_s += time.perf_counter() - began_s

        return call

    took: list[tuple[float, float]] = []
    began_s = time.perf_counter()

    def resumed(event: Any) -> None:
        if event["kind"] == "resumed":
            took.append((time.perf_counter() - began_s, checked_s))

    for name in plain:
        setattr(Manifest, name, timed(name))
    try:
        fo.run(read_recipe(recipe), observers=(resumed,), **asked)
    finally:
        for name, was in plain.items():
            setattr(Manifest, name, was)
    began_s = time.perf_counter()
    subprocess.run([sys.executable, "-c", "import flatout.cli.main, flatout.runs.verbs"], check=True)
    return {"start_s": time.perf_counter() - began_s, "resume_s": took[0][0], "manifest_s": took[0][1]}


def main() -> int:
    parser = options(__doc__, repeats=1)
    parser.add_argument("--flips", type=int, default=400, help="how many bits to flip, one at a time (default 400)")
    parser.add_argument("--seed", type=int, default=0, help="of the bits")
    asked = parser.parse_args()
    flips = 20 if asked.quick or asked.smoke else asked.flips
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        recipe = folder / "flips.yaml"
        recipe.write_text(RECIPE % 2)
        fo.run(read_recipe(recipe), runs=folder / "runs", cache=None, planning="off")
        run = find(folder / "runs", "flips-1")
        if not (run.path / "receipt.json").exists():  # of a run this short nothing is tried
            run.write("receipt.json", Receipt(reference={}, settings={}, entries=()).to_dict())
        found = flip_all(folder / "runs", flips, asked.seed)
        cost = resume_cost(folder, 6)
        shutil.rmtree(folder / "runs")
    report = Report("bit_flips", str(__doc__), torch.device("cpu"))
    report.conditions = {"recipe": RECIPE % 2, "seed": asked.seed, **found, **cost, "n": flips}
    report.conditions["share_without_process_start"] = cost["manifest_s"] / cost["resume_s"]  # a tiny run: milliseconds
    told = found["outcomes"].get("told", 0)
    report.bars = [
        Bar("bits flipped, one at a time", flips, flips),
        Bar("told by name", told, flips // 2),
        Bar("other answers without a word", found["outcomes"].get("wrong without a word", 0), 0, at_least=False),
        Bar("tracebacks", found["outcomes"].get("traceback", 0), 0, at_least=False),
        Bar("files never flipped", sum(not count for count in found["files"].values()), 0, at_least=False),
        Bar(
            "checksums, share of the resuming command, its process start included",
            cost["manifest_s"] / (cost["start_s"] + cost["resume_s"]),
            0.02,
            at_least=False,
        ),
    ]
    return report.finish(asked)


if __name__ == "__main__":
    raise SystemExit(main())
