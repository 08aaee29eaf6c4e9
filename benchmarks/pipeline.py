"""With nothing changed `flatout pipeline` ends within 1 s, five times as fast as `dvc repro`; --dry is 25% off at most."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import venv
from pathlib import Path

import torch
import yaml
from evidence import Bar, Report, options, take_turns

STAGES, LIMIT_S, RATIO, OFF = 6, 1.0, 5.0, 0.25
SCRIPT = """\
import sys
source, target, rounds = sys.argv[1:]
text = open(source).read()
total = 0
for number in range(int(rounds) * len(text) // 100):
    total += number % 7
open(target, "w").write(text + f"{total}\\n")
"""


def write_project(folder: Path, stages: int) -> None:
    """The same chain of scripts, for both tools."""
    folder.mkdir()
    (folder / "work.py").write_text(SCRIPT)
    (folder / "0.txt").write_text("a row of text\n" * 2000)
    ours, theirs = {}, {}
    for number in range(stages):
        command = f"python work.py {number}.txt {number + 1}.txt {20 * (number + 1)}"
        ours[f"stage{number}"] = {"run": command, "outputs": [f"{number + 1}.txt"]}
        theirs[f"stage{number}"] = {"cmd": command, "deps": ["work.py", f"{number}.txt"], "outs": [f"{number + 1}.txt"]}
    (folder / "pipeline.yaml").write_text(yaml.safe_dump({"stages": ours}))
    (folder / "dvc.yaml").write_text(yaml.safe_dump({"stages": theirs}))


def seconds(command: list[str], folder: Path, environment: dict[str, str]) -> float:
    began_s = time.perf_counter()
    subprocess.run(command, cwd=folder, env=environment, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return time.perf_counter() - began_s


def compiled(home: Path) -> dict[str, str]:
    """Of a checkout nothing may be compiled yet: the first call does that, as pip does it for what it installs."""
    return {"PYTHONPYCACHEPREFIX": str(home / "compiled"), "PYTHONDONTWRITEBYTECODE": ""}


def dvc_in(environment: Path) -> Path | None:
    """`dvc` in an environment of its own; None if it can't be installed."""
    program = environment / "bin" / "dvc"
    if not program.exists():
        if not (environment / "bin" / "pip").exists():
            venv.create(environment, with_pip=True)
        if subprocess.run([environment / "bin" / "pip", "install", "-q", "dvc"], check=False).returncode:
            return None
    return program


def prediction_error(folder: Path, flatout: list[str], environment: dict[str, str]) -> list[float]:
    """By stage: how far the time that --dry says is from what the stage then takes. Inputs grow meanwhile."""
    text = (folder / "0.txt").read_text()
    off: list[float] = []
    for times in (2, 3, 2):
        (folder / "0.txt").write_text(text * times + str(len(off)))
        asked = subprocess.run([*flatout, "--dry", "--json"], cwd=folder, env=environment, check=True, capture_output=True)
        said = {one["stage"]: one["seconds"] for one in json.loads(asked.stdout)["stages"]}
        seconds(flatout, folder, environment)
        for name, predicted in said.items():
            took = json.loads((folder / "built" / ".pipeline" / "stages" / f"{name}.json").read_text())["seconds"]
            off.append(abs(predicted - took) / took)
    return off


def main() -> int:
    parser = options(__doc__, 15)
    parser.add_argument(
        "--environment", type=Path, help="where dvc is, or will be installed; by default a folder that is removed"
    )
    parser.add_argument("--without-dvc", action="store_true", help="measure flatout alone")
    asked = parser.parse_args()
    trial = asked.quick or asked.smoke
    report = Report("pipeline", (__doc__ or "").strip(), torch.device("cpu"), {"stages": STAGES})
    with tempfile.TemporaryDirectory(prefix="pipeline-") as scratch:
        home = Path(scratch)
        environment = {**os.environ, "FLATOUT_CACHE": str(home / "cache"), "DVC_NO_ANALYTICS": "1"}
        environment |= compiled(home)
        flatout = [sys.executable, "-m", "flatout", "pipeline"]
        write_project(home / "ours", STAGES)
        seconds(flatout, home / "ours", environment)
        arms = {"flatout": lambda: seconds(flatout, home / "ours", environment)}
        program = None if asked.smoke or asked.without_dvc else dvc_in(asked.environment or home / "dvc")
        if program is not None:
            write_project(home / "theirs", STAGES)
            environment_of_dvc = {name: value for name, value in environment.items() if name not in compiled(home)}
            for words in (["init", "--no-scm", "-q"], ["config", "core.check_update", "false"]):
                seconds([str(program), *words], home / "theirs", environment_of_dvc)
            repro = [str(program), "repro"]
            seconds(repro, home / "theirs", environment_of_dvc)
            arms["dvc repro"] = lambda: seconds(repro, home / "theirs", environment_of_dvc)
            about = subprocess.run([str(program), "--version"], capture_output=True, text=True, check=True)
            report.conditions["dvc"] = about.stdout.strip()
        else:
            report.conditions["dvc"] = "not measured"
        values = take_turns(arms, 2 if trial else asked.repeats, asked.within)
        for name, taken in values.items():
            report.arm(name, "s", taken)
        report.bar("nothing changed, seconds of the whole command", "flatout", LIMIT_S, at_least=False)
        if program is not None:
            report.arm("flatout, calls/s", "1/s", [1 / one for one in values["flatout"]])
            report.arm("dvc repro, calls/s", "1/s", [1 / one for one in values["dvc repro"]])
            report.ratio("times as fast as dvc repro", "flatout, calls/s", "dvc repro, calls/s", RATIO)
        off = prediction_error(home / "ours", flatout, environment)
        report.conditions["predictions off by"] = off
        report.bars.append(Bar("predicted against taken time of a stage, median", statistics.median(off), OFF, at_least=False))
    return report.finish(asked)


if __name__ == "__main__":
    sys.exit(main())
