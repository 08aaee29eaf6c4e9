"""`drill`: runs a recipe twice, once uninterrupted and once killed with SIGKILL many times and resumed by the same command.

Half of the kills come while a checkpoint is being written, the rest at random moments. At the end, the weights, the optimizer
and the random state of both runs must be equal, bit for bit. Both runs use deterministic kernels.
"""

from __future__ import annotations

import json
import random
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from flatout.base.child import Child, Printed
from flatout.base.errors import TrainingError
from flatout.base.events import read_events
from flatout.base.exits import exit_words
from flatout.base.tree import Cell, Doc, Fields, Table, TableColumn, TextLine
from flatout.base.units import show_seconds
from flatout.drill.difference import differing_bits
from flatout.store.run_folder import RATE_FILE, RunFolder, all_runs

_SILENT_LIMIT_S = 300.0


@dataclass(frozen=True)
class Kill:
    target_step: int
    inside_write: bool  # the kill left a half-written checkpoint
    step: int  # of the last complete checkpoint


@dataclass(frozen=True)
class DrillReport:
    recipe: str
    steps: int
    kills: tuple[Kill, ...]
    resumed: int
    lost_runs: int
    differing_bits: int
    compared_tensors: int
    seconds: float

    @property
    def passed(self) -> bool:
        return self.differing_bits == 0 and self.lost_runs == 0 and self.resumed == len(self.kills)

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "passed": self.passed, "inside_write": sum(kill.inside_write for kill in self.kills)}


def drill(
    recipe: Path,
    arguments: Sequence[str],
    *,
    kills: int,
    folder: Path,
    seed: int = 0,
    tell: Callable[[str], None] = lambda line: None,
) -> DrillReport:
    """`arguments` are passed to `flatout run`; both runs write to subfolders of `folder`."""
    began_s = time.monotonic()
    command = [sys.executable, "-m", "flatout", "run", str(recipe), *arguments, "--set", "deterministic=on", "--quiet"]
    tell("running the recipe without interruption")
    calm = _finish([*command, "--runs", str(folder / "calm")], folder / "calm")
    steps = int(calm.result["steps"])
    every = max(1, steps // (4 * (kills + 1)))
    tell(f"finished after {steps} steps; running it again with {kills} kills and a checkpoint every {every} steps")
    pins = ["--set", f"checkpoint_every={every} steps", "--set", f"log_every={max(1, every // 4)}"]
    if threads := calm.read("plan.json")["settings"]["threads"]:  # other numbers round sums otherwise
        pins += ["--set", f"threads={threads}"]
    drilled = [*command, *pins, "--runs", str(folder / "drilled")]
    if (calm.path / RATE_FILE).exists():  # with lr: auto a search of its own could find another rate
        drilled.append(f"lr={calm.read(RATE_FILE)['lr']!r}")
    chance = random.Random(seed)
    done: list[Kill] = []
    for number in range(kills):
        target = int(steps * (number + chance.random()) / (kills + 1))
        done.append(_kill_once(drilled, folder / "drilled", target, inside_write=number % 2 == 1, chance=chance))
        where = "during a checkpoint write" if done[-1].inside_write else "at a random moment"
        tell(f"kill {number + 1} of {kills}: {where}, aimed at step {target}; last complete checkpoint: step {done[-1].step}")
    tell("resuming the run to its end")
    last = _finish(drilled, folder / "drilled")
    resumed = sum(event["kind"] in ("resumed", "started") for event in read_events(last.events_path)) - 1
    bits, tensors = differing_bits(calm, last)
    lost = len(list(all_runs(folder / "drilled"))) - 1
    return DrillReport(str(recipe), steps, tuple(done), resumed, lost, bits, tensors, time.monotonic() - began_s)


def _kill_once(command: list[str], runs: Path, target: int, *, inside_write: bool, chance: random.Random) -> Kill:
    with Child(command, output=Printed.DROPPED) as child:  # leaving the `with` kills it with SIGKILL
        began_s = time.monotonic()
        folder = _wait_for(lambda: _newest(runs), child, began_s)
        events_before = folder.events_path.stat().st_size if folder.events_path.exists() else 0
        _wait_for(lambda: _began(folder, events_before), child, began_s, pause_s=0.01)
        if inside_write:
            _wait_for(lambda: (folder.checkpoints().being_written() or -1) >= target, child, time.monotonic(), pause_s=0.0005)
        else:
            _wait_for(lambda: _last_step(folder, events_before) >= target, child, time.monotonic())
            time.sleep(chance.random() * 0.05)
    left = folder.checkpoints()
    return Kill(target, left.being_written() is not None, max(left.steps(), default=0))


def _wait_for(condition: Callable[[], Any], child: Child, began_s: float, pause_s: float = 0.002) -> Any:
    while True:
        found = condition()
        if found:
            return found
        if (code := child.wait(0)) is not None:
            error = child.printed().strip() or "use a longer budget"
            raise TrainingError(f"the run {exit_words(code)} before it could be killed: {error}")
        if time.monotonic() - began_s > _SILENT_LIMIT_S:
            raise TrainingError(f"the run logged nothing for {_SILENT_LIMIT_S:.0f} s")
        time.sleep(pause_s)


def _finish(command: list[str], runs: Path) -> RunFolder:
    with Child(command, output=Printed.DROPPED) as child:
        code = child.wait()
    if code != 0:
        raise TrainingError(f"the run {exit_words(code)}: {child.printed().strip()}")
    folder = _newest(runs)
    assert folder is not None
    return folder


def _newest(runs: Path) -> RunFolder | None:
    found = list(all_runs(runs))
    return found[-1] if found else None


def _since(folder: RunFolder, offset: int) -> list[dict[str, Any]]:
    """Events written since this start. Reading all events would slow down the run."""
    if not folder.events_path.exists():
        return []
    with folder.events_path.open("rb") as log:
        log.seek(offset)
        lines = log.read().split(b"\n")[:-1]  # the last line is incomplete or empty
    return [json.loads(line) for line in lines if line.startswith(b"{") and line.endswith(b"}")]


def _began(folder: RunFolder, offset: int) -> bool:
    return any(event["kind"] in ("started", "resumed") for event in _since(folder, offset))


def _last_step(folder: RunFolder, offset: int) -> int:
    return max((int(e["step"]) for e in _since(folder, offset) if e["kind"] in ("step", "resumed")), default=-1)


def doc(report: DrillReport) -> Doc:
    inside = sum(kill.inside_write for kill in report.kills)
    verdict = "passed" if report.passed else "FAILED"
    rows = [
        {"what": "killed", "figure": Cell(len(report.kills), f"{len(report.kills)} times, {inside} during a checkpoint write")},
        {"what": "resumed", "figure": Cell(report.resumed, f"{report.resumed} times by the same command")},
        {"what": "lost runs", "figure": Cell(report.lost_runs, str(report.lost_runs))},
        {
            "what": "differing bits",
            "figure": Cell(report.differing_bits, f"{report.differing_bits} in {report.compared_tensors} tensors"),
        },
    ]
    return Doc(
        (
            Fields(report.to_dict()),
            TextLine(f"drill {verdict}: {report.recipe}, {report.steps} steps, {show_seconds(report.seconds)}", strong=True),
            Table("figures", (TableColumn("what", ""), TableColumn("figure", "")), rows, in_json=False),
            TextLine(
                "(weights, optimizer and random state after the last step, compared with an uninterrupted, deterministic run)"
            ),
        )
    )
