"""200 kills in start-up, planning, training, saves and evaluations by TERM, HUP and KILL: the same bits, nothing left over."""

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
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch
from evidence import Bar, Report, options

from flatout.base.events import read_events
from flatout.drill.difference import differing_bits
from flatout.store.run_folder import RunFolder, all_runs

PHASES = ("start-up", "planning", "training", "save", "evaluation")
SIGNALS = (signal.SIGTERM, signal.SIGHUP, signal.SIGKILL)
EXIT_CODES = {signal.SIGTERM: 143, signal.SIGHUP: 129, signal.SIGKILL: -9}
MARK = "KILLS_HOME"  # in the environment of every process of a round: whoever has it and lives on is an orphan
WAIT_S, ORPHANS_S = 180.0, 20.0
EPOCHS = 20

# A model that says when it is evaluated, and a knob that changes nothing: trials of it cost time and no bit.
PARTS = """\
import os, time
from pathlib import Path
from torch import nn
from flatout.engine.settings import value_of
from flatout.plan.knobs.knob import Candidate
from flatout.plan.plan import Choice

class Net(nn.Module):
    def __init__(self, input_shape, outputs, cardinalities=()):
        super().__init__()
        size = 1
        for side in input_shape:
            size *= side
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(size, 16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, outputs))

    def forward(self, x):
        if not self.training and "KILLS_HOME" in os.environ:
            (Path(os.environ["KILLS_HOME"]) / "evaluating").touch()
            time.sleep(0.01)
        if self.training:
            time.sleep(0.005)
        return self.layers(x.float())

class Nothing:
    name, off, lossy, risky, meets = "nothing", False, False, False, ()

    def default(self, s, values):
        yield Choice(self.name, False, "for trials")

    def candidates(self, s, now):
        if not value_of(now, self.name):
            yield Candidate(True, "is claimed to be fast", factor=1.5)

    def turn(self, model, value):
        pass
"""
SETTINGS = """\
objective: classify
batch: 8
lr: 1e-3
clip: 1.0
ema: 0.9
schedule: constant
evaluate: 1 epoch
knobs: [parts:Nothing]
settings: {device: cpu, deterministic: on, precision: fp32, compile: off, fused_optimizer: on, channels_last: off,
  checkpoint_every: 5 steps, log_every: 2, keep_checkpoints: 2}
"""
TABLE = "data: {table: table.csv, label: label, holdout: 0.2}\nmodel: parts:Net\n" + SETTINGS
PHOTOS = "data: {images: photos, size: 12, augment: [flip], holdout: 0.25}\nmodel: parts:Net\n" + SETTINGS
DATASET = """\
import random, time
import torch, yaml
from torch.utils.data import Dataset
import flatout as fo
import parts

class Rows(Dataset):
    def __len__(self):
        return 80

    def __getitem__(self, number):
        time.sleep(0.0005)
        made = torch.Generator().manual_seed(number)
        x = torch.randn(6, generator=made)
        return x + 0.01 * random.random(), int(x.sum() > 0)

def recipe():
    data = fo.data.dataset(Rows(), holdout=0.2, workers=2, classes=2)
    rest = yaml.safe_load(%r)
    rest["settings"] = {name: str(value) for name, value in rest["settings"].items()}
    return fo.Recipe(data=data, model="parts:Net", budget="1 epoch", **rest)
"""
RECIPES = {"table": "table.yaml", "photos": "photos.yaml", "dataset with workers": "rows.py"}


def make_files(folder: Path) -> None:
    from PIL import Image

    numbers = np.random.default_rng(0)
    rows = numbers.normal(size=(120, 3))
    lines = [f"{a:.4f},{b:.4f},{c:.4f},{'yes' if a + b > c else 'no'}" for a, b, c in rows]
    (folder / "table.csv").write_text("\n".join(["a,b,c,label", *lines]) + "\n")
    for at, kind in enumerate(("ants", "bees")):
        (folder / "photos" / kind).mkdir(parents=True)
        for number in range(40):
            pixels = numbers.integers(0, 160, size=(20, 22, 3)) + 60 * at
            Image.fromarray(pixels.astype("uint8")).save(folder / "photos" / kind / f"{number}.jpg")
    (folder / "parts.py").write_text(PARTS)
    (folder / "table.yaml").write_text(TABLE)
    (folder / "photos.yaml").write_text(PHOTOS)
    (folder / "rows.py").write_text(DATASET % SETTINGS)


@dataclass(frozen=True)
class Kill:
    recipe: str
    phase: str  # where it was when the signal came
    signal_name: str
    exit_code: int
    faults: tuple[str, ...]


class Round:
    """One run from its start to its end in a home of its own, killed on its way."""

    def __init__(self, folder: Path, home: Path, recipe: str, budget: str, cache: Path) -> None:
        self.home, self.runs, self.recipe = home, home / "runs", recipe
        (home / "tmp").mkdir(parents=True)
        shutil.copytree(cache, home / "cache")
        words = ["-m", "flatout", "run", str(folder / RECIPES[recipe]), f"budget={budget}", "--runs", str(self.runs)]
        self._command = [sys.executable, *words, "--planning", "60 s"]
        self._environment = {**os.environ, MARK: str(home), "TMPDIR": str(home / "tmp"), "FLATOUT_CACHE": str(home / "cache")}
        self._folder = folder

    def start(self) -> subprocess.Popen[bytes]:
        self.said = self.home / "said"
        with self.said.open("wb") as words:
            return subprocess.Popen(
                self._command, env=self._environment, cwd=self._folder, stdout=subprocess.DEVNULL, stderr=words
            )

    def kill(self, phase: str, number: signal.Signals, chance: random.Random) -> Kill | None:
        """None, where the run came to its end before."""
        (self.home / "evaluating").unlink(missing_ok=True)
        before = self._size()
        process = self.start()
        try:
            if not self._reached(phase, process, before, chance):
                process.wait(WAIT_S)
                return None
            where = self._where(before)
            process.send_signal(number)
            code = process.wait(WAIT_S)
        finally:
            process.kill()
            process.wait()
        if code == 0:
            return None
        return Kill(self.recipe, phase if phase == "save" else where, number.name, code, self._faults(number, code, where))

    def finish(self) -> tuple[int, int]:
        """Its exit code, and the number of runs. After the end the same command would begin another run."""
        folder = self.run_folder()
        code = 0 if folder is not None and folder.status == "finished" else self.start().wait(WAIT_S)
        return code, len(list(all_runs(self.runs)))

    def run_folder(self) -> RunFolder | None:
        return next(iter(all_runs(self.runs)), None) if self.runs.is_dir() else None

    # ---- when ----

    def _reached(self, phase: str, process: subprocess.Popen[bytes], before: int, chance: random.Random) -> bool:
        if phase == "start-up":
            time.sleep(0.05 + 2.5 * chance.random())
            return process.poll() is None
        if phase == "planning" and not self._begun():
            found = self._until(lambda: b"trying" in self.said.read_bytes() or self._began(before), process)
            time.sleep(chance.random())
        elif phase == "save":
            found = self._until(self._saving, process, pause_s=0.0002)
        elif phase == "evaluation":
            found = self._until(lambda: self._began(before), process)
            (self.home / "evaluating").unlink(missing_ok=True)
            found = found and self._until((self.home / "evaluating").exists, process, pause_s=0.001)
        else:
            found = self._until(lambda: self._began(before), process)
            time.sleep(0.15 * chance.random())
        return found and process.poll() is None

    def _until(self, found: Callable[[], Any], process: subprocess.Popen[bytes], pause_s: float = 0.005) -> bool:
        ends_s = time.monotonic() + WAIT_S
        while time.monotonic() < ends_s and process.poll() is None:
            if found():
                return True
            time.sleep(pause_s)
        return False

    def _begun(self) -> bool:
        folder = self.run_folder()
        return folder is not None and folder.begun

    def _saving(self) -> bool:
        folder = self.run_folder()
        return folder is not None and folder.checkpoints().being_written() is not None

    def _size(self) -> int:
        folder = self.run_folder()
        return folder.events_path.stat().st_size if folder is not None and folder.events_path.exists() else 0

    def _began(self, before: int) -> bool:
        folder = self.run_folder()
        if folder is None or not folder.events_path.exists():
            return False
        with folder.events_path.open("rb") as log:
            log.seek(before)
            since = log.read()
        return b'"resumed"' in since or b'"started"' in since

    def _where(self, before: int) -> str:
        if self._began(before):
            return "evaluation" if self._evaluates() else "training"
        return "planning" if b"trying" in self.said.read_bytes() else "start-up"

    def _evaluates(self) -> bool:
        mark = self.home / "evaluating"
        return mark.exists() and time.time() - mark.stat().st_mtime < 0.05

    # ---- what is left ----

    def _faults(self, number: signal.Signals, code: int, where: str) -> tuple[str, ...]:
        expected = {EXIT_CODES[number], *([-number] if where == "start-up" else [])}  # before a handler is there
        found = [] if code in expected else [f"exit code {code}"]
        if b"Traceback" in self.said.read_bytes():
            found.append(f"traceback: {self.said.read_bytes()[-600:].decode(errors='replace')}")
        return (*found, *self.left_behind())

    def left_behind(self) -> list[str]:
        ends_s = time.monotonic() + ORPHANS_S
        while (orphans := self._orphans()) and time.monotonic() < ends_s:
            time.sleep(0.1)
        folders = [name for name in os.listdir(self.home / "tmp") if not name.startswith("torchinductor")]  # torch's own cache
        return [*(f"orphan: {orphan}" for orphan in orphans), *(f"temporary: {name}" for name in folders)]

    def _orphans(self) -> list[str]:
        found = []
        for process in psutil.process_iter():
            try:
                if process.status() != psutil.STATUS_ZOMBIE and process.environ().get(MARK) == str(self.home):
                    found.append(" ".join(process.cmdline())[:200])
            except (psutil.NoSuchProcess, psutil.AccessDenied):
                continue
        return found


def calm_run(folder: Path, recipe: str, budget: str, cache: Path) -> RunFolder:
    runs = folder / f"calm-{recipe}-{budget.partition(' ')[0]}".replace(" ", "-")
    command = [sys.executable, "-m", "flatout", "run", str(folder / RECIPES[recipe]), f"budget={budget}", "--runs", str(runs)]
    environment = {**os.environ, "FLATOUT_CACHE": str(cache)}
    subprocess.run(
        [*command, "--planning", "off", "--quiet"], check=True, cwd=folder, env=environment, stdout=subprocess.DEVNULL
    )
    return next(iter(all_runs(runs)))


def budget_of(first: RunFolder) -> str:
    """Ends at the last evaluation that was the best: so that a plan takes the run for a long one, and makes trials."""
    losses = [event["metrics"]["loss"] for event in read_events(first.events_path) if event["kind"] == "evaluation"]
    records = [at for at, loss in enumerate(losses) if loss == min(losses[: at + 1])]
    aim = (losses[records[-1]] + min(losses[: records[-1]])) / 2
    return f"loss <= {aim:.9f} within 50000 epochs"


def killed_round(one: Round, kills: int, chance: random.Random, calm: RunFolder) -> tuple[list[Kill], list[str]]:
    """Phases in the order in which a run comes through them; what is wrong in the end is wrong for all its kills."""
    order = sorted(range(kills), key=lambda at: PHASES.index(_PLAN[at % len(_PLAN)]))
    done: list[Kill] = []
    for at in order:
        killed = one.kill(_PLAN[at % len(_PLAN)], chance.choice(SIGNALS), chance)
        if killed is None:
            break
        done.append(killed)
        print(f"  {killed.phase}, {killed.signal_name}: {killed.exit_code} {killed.faults or ''}", file=sys.stderr, flush=True)
    code, count = one.finish()
    last_words = one.said.read_bytes()[-400:].decode(errors="replace")
    wrong = [] if code == 0 else [f"the last start ended with {code}: {last_words}"]
    wrong += [] if count == 1 else [f"{count} runs instead of 1"]
    folder = one.run_folder()
    if code == 0 and folder is not None:
        bits, _ = differing_bits(calm, folder)
        wrong += [f"{bits} bits differ"] if bits else []
        wrong += ["half a checkpoint is left"] if folder.checkpoints().being_written() is not None else []
    wrong += one.left_behind()
    wrong += [f"in runs: {name}" for name in os.listdir(one.runs) if name.startswith(".") and name != ".gitignore"]
    return done, wrong


_PLAN = ("start-up", "planning", "training", "save", "evaluation", "training", "planning", "save", "evaluation", "training")


def main() -> int:
    parser = options(__doc__, repeats=1)
    parser.add_argument("--kills", type=int, default=200, help="how often (default 200)")
    parser.add_argument("--seed", type=int, default=0, help="of phases, moments and signals")
    asked = parser.parse_args()
    kills = 5 if asked.quick or asked.smoke else asked.kills
    chance, began_s = random.Random(asked.seed), time.monotonic()
    done: list[Kill] = []
    wrong: list[str] = []
    good = rounds = 0
    with tempfile.TemporaryDirectory(prefix="kills-") as name:
        folder = Path(name)
        make_files(folder)
        cache = folder / "cache"
        budgets = {recipe: budget_of(calm_run(folder, recipe, f"{EPOCHS} epochs", cache)) for recipe in RECIPES}
        calm = {recipe: calm_run(folder, recipe, budget, cache) for recipe, budget in budgets.items()}
        while len(done) < kills:
            recipe = list(RECIPES)[rounds % len(RECIPES)]
            print(f"round {rounds + 1}: {recipe}, {len(done)} of {kills} kills", file=sys.stderr, flush=True)
            home = folder / f"round-{rounds}"
            one = Round(folder, home, recipe, budgets[recipe], cache)
            killed, faults = killed_round(one, min(len(_PLAN), kills - len(done)), chance, calm[recipe])
            rounds += 1
            done += killed
            good += 0 if faults else sum(not kill.faults for kill in killed)
            wrong += [f"round {rounds}, {recipe}: {fault}" for fault in faults]
            if faults:
                print(f"  WRONG: {faults}", file=sys.stderr, flush=True)
            shutil.rmtree(home)
            if not killed:
                break
    report = Report("kills", str(__doc__), torch.device("cpu"))
    report.conditions = {"seed": asked.seed, "runs": rounds, "recipes": dict(Counter(kill.recipe for kill in done))}
    report.conditions |= {"phases": dict(Counter(kill.phase for kill in done))}
    report.conditions |= {"signals": dict(Counter(kill.signal_name for kill in done))}
    report.conditions |= {"both": dict(Counter(f"{kill.phase}, {kill.signal_name}" for kill in done))}
    report.conditions |= {"seconds": round(time.monotonic() - began_s, 1), "wrong": wrong}
    report.conditions |= {"bad_kills": [asdict(kill) for kill in done if kill.faults]}
    report.bars = [
        Bar("kills", len(done), kills),
        Bar("of them without a fault, in runs that ended with the same bits", good, kills),
        Bar("runs that ended otherwise, or left something behind", len(wrong), 0, at_least=False),
    ]
    return report.finish(asked)


if __name__ == "__main__":
    sys.exit(main())
