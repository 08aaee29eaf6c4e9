"""`flatout boost`: does its proof catch planted bugs, and pass harmless remedies, on a machine that never repeats itself?"""

# Five kinds of models from random weights. Kernels add noise as a GPU's do (_noisy_kernels), which also makes the first steps
# of the deep network chaotic; on a GPU, "none" is the noise of its own kernels. Each trial is what boost runs, without timing:
# the compared steps and the losses.

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import _noisy_kernels
import _planted_remedies
import torch
import torch._dynamo
from _proof_scripts import SCRIPTS
from evidence import BEGAN_S, Bar, Report, options

from flatout.boost.boosting import in_a_fork, protection_here
from flatout.boost.forks import Forks
from flatout.boost.proving import Proof
from flatout.boost.trying import Trials
from flatout.doctor.script import Script
from flatout.machine.host import affinity_cores

REAL = {"autocast": "bf16", "channels_last": "on", "fused_optimizer": "on"}
OF_GPU = {"tf32": "on", "cudnn_benchmark": "on", "cuda_graphs": "on"}
OF_IMAGES = ("channels_last", "cudnn_benchmark")
NOISES = {"none": 0.0, "order of sums": 1e-6, "tf32": 3e-4}
STEPS = 40


def judged(kind: str, noise: str, seed: int, only: list[str], until_s: float) -> dict[str, Any] | None:
    """Why each remedy was rejected, or ""; of one script with one seed on one machine. None if it is too late."""
    if time.monotonic() > until_s:
        return None
    torch.set_num_threads(1)
    if NOISES[noise]:
        _noisy_kernels.install(NOISES[noise])
    _planted_remedies.register()
    began_s = time.monotonic()
    told: dict[str, Any] = {"kind": kind, "noise": noise, "seed": seed, "said": [], "rejected": {}}
    with tempfile.TemporaryDirectory() as folder, Forks(in_a_fork) as forks:
        script = Path(folder) / f"{kind}.py"
        script.write_text(SCRIPTS[kind])
        place = Path(folder) / "trials"
        place.mkdir()
        trials = Trials(forks, Script(str(script), (str(seed),)), place, STEPS, protection_here(forks, place).kind)
        proof = Proof(trials, told["said"].append)
        why = proof.begin(("fp32", "tf32", "bf16"), lambda: False)
        told["place"] = proof.place.at if proof.place else None
        told["why"] = why
        for group, name, value in remedies_of(kind):
            if why or group not in only:
                continue
            found = trials.attempt(((name, value),))
            if found.failure:
                told["rejected"][name] = [group, f"{found.failure}: {found.why}"]
            elif found.check is None or not found.check["passed"]:
                told["rejected"][name] = [group, str((found.check or {}).get("why"))]
            else:
                losses = proof.losses(found, ((name, value),))
                told["rejected"][name] = [group, "" if losses["passed"] else f"losses: {losses['why']}"]
    told["took_s"] = time.monotonic() - began_s
    return told


def remedies_of(kind: str) -> Iterator[tuple[str, str, Any]]:
    real = REAL | (OF_GPU if torch.cuda.is_available() else {})
    yield from (("harmless", name, value) for name, value in real.items() if name not in OF_IMAGES or kind in ("cnn", "gan"))
    yield from (("harmless", name, "on") for name in _planted_remedies.HARMLESS)
    yield from (("bug", name, "on") for name in _planted_remedies.bugs_of(kind))


def told_of(found: dict[str, Any]) -> Iterator[str]:
    yield f"{found['kind']}, noise {found['noise']}, seed {found['seed']}: compared after {found['place']} steps {found['why']}"
    for name, (group, why) in found["rejected"].items():
        if (group == "bug") != bool(why):
            yield f"   {'MISSED' if group == 'bug' else 'FALSELY REJECTED'}: {name}: {why}"


def main() -> int:
    parser = options(__doc__, repeats=5)
    parser.add_argument("--kinds", nargs="*", default=list(SCRIPTS), choices=SCRIPTS)
    parser.add_argument("--noises", nargs="*", default=list(NOISES), choices=NOISES)
    parser.add_argument("--only", nargs="*", default=["harmless", "bug"], choices=["harmless", "bug"])
    parser.add_argument("--processes", type=int, default=affinity_cores(), help="scripts at once (default: as many as cores)")
    asked = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    report = Report("boost_proof", __doc__ or "", device, {"noises": {name: NOISES[name] for name in asked.noises}})
    kinds, seeds = (["mlp"], 1) if asked.smoke else (asked.kinds, 1 if asked.quick else asked.repeats)
    until_s = float("inf") if asked.within is None else BEGAN_S + asked.within
    jobs = [(kind, noise, seed, asked.only, until_s) for seed in range(seeds) for noise in asked.noises for kind in kinds]
    with ProcessPoolExecutor(asked.processes, get_context("spawn"), max_tasks_per_child=1) as pool:
        results = []
        for one in pool.map(judged, *zip(*jobs, strict=True)):
            if one is not None:
                results.append(one)
                print("\n".join(told_of(one)), file=sys.stderr, flush=True)
    report.conditions["scripts"] = {noise: sum(one["noise"] == noise for one in results) for noise in asked.noises}
    report.conditions["wrong"] = [line.strip() for one in results for line in told_of(one) if line.startswith(" ")]
    report.conditions["compared_after"] = {
        kind: sorted({one["place"] for one in results if one["kind"] == kind}) for kind in kinds
    }
    unproven = [one for one in results if one["why"]]
    report.bars.append(Bar("scripts on which nothing can be proven", len(unproven), 0, at_least=False))
    for group, claim, limit in (("harmless", "harmless remedies rejected", 0.02), ("bug", "planted bugs kept", 0.0)):
        wrong = [
            bool(why) == (group == "harmless") for one in results for mine, why in one["rejected"].values() if mine == group
        ]
        if wrong:
            report.conditions[group] = {"tried": len(wrong), "wrong": sum(wrong)}
            report.bars.append(Bar(claim, sum(wrong) / len(wrong), limit, at_least=False))
    return report.finish(asked)


if __name__ == "__main__":
    sys.exit(main())
