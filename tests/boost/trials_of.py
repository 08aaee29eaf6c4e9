"""Trials of scripts by turns, each with the remedy that a file beside it names; prints what they told, and which step each
turn of either ended with."""

from __future__ import annotations

import json
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

import torch._dynamo  # noqa: F401  the optimizers ask for it

from flatout.boost.boosting import in_a_fork, protection_here
from flatout.boost.forks import Forks
from flatout.boost.trying import Trials
from flatout.doctor.script import Script

told = {}
with tempfile.TemporaryDirectory() as folder, Forks(in_a_fork) as forks:
    for name in sys.argv[1:]:
        place = Path(folder) / name
        place.mkdir()
        trials = Trials(forks, Script(f"{name}.py"), place, 40, protection_here(forks, place).kind)
        trials.attempt((), keep=True)
        remedy = tuple(json.loads(Path(f"{name}.json").read_text()))
        found = asdict(trials.attempt((remedy,), against=()))
        ends = [[int(line.split()[1]) for line in path.read_text().splitlines()] for path in sorted(place.glob("t*/turns.txt"))]
        told[name] = {"told": found, "ends": [one for one in ends if one]}
print(json.dumps(told))
