"""Patched versions of a script, each run as a patch is before it is offered; prints why each is refused, or "".

python patches_of.py SCRIPT PATCHED...
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

import torch._dynamo  # noqa: F401  the optimizers ask for it

from flatout.boost.boosting import in_a_fork, protection_here
from flatout.boost.forks import Forks
from flatout.boost.proving import Proof
from flatout.boost.trying import Trials
from flatout.doctor.script import Script

script, *patched = sys.argv[1:]
with tempfile.TemporaryDirectory() as folder, Forks(in_a_fork) as forks:
    trials = Trials(forks, Script(script), Path(folder), 40, protection_here(forks, Path(folder)).kind)
    proof = Proof(trials, print)
    proof.reference, proof.again = proof.twice()
    kept = [("fused_optimizer", "on")]
    told = {name: proof.of_patch(kept, [(str(Path(script).resolve()), Path(name).read_text())]) for name in patched}
print(json.dumps(told))
