"""The card of a package: where it comes from, and how it was checked."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from typing import Any

import torch

from flatout import __version__
from flatout.packaging.ports import Port
from flatout.packaging.runtimes.choice import Measured
from flatout.packaging.samples import Samples
from flatout.runs.record import Run


def card_of(run: Run, objective: str, samples: Samples, measured: Sequence[Measured], code: str | None) -> dict[str, Any]:
    """`code` names the model's class, `module:name`, where the model could not be written as a graph."""
    folder, plan = run.folder, run.plan
    kept = folder.read("data.json")
    return {
        "run": {"name": run.name, "path": str(run.path.resolve()), "identity": folder.identity, "status": folder.status},
        "recipe": folder.read("recipe.json"),
        "data": {"fingerprint": kept["fingerprint"], "train_rows": kept["train_rows"]},
        "plan": plan.to_dict(),
        "result": {name: value for name, value in run.result.items() if name != "plan"},
        "objective": objective,
        "precision": plan.settings.precision,
        "code": code,
        "samples": {"rows": len(samples), "origin": samples.origin, "raw": samples.raw is not None or bool(samples.photos)},
        "parity": {
            one.name: one.why_not if one.parity is None or not one.parity.holds else one.parity.to_json() for one in measured
        },
        "versions": {"flatout": __version__, "torch": torch.__version__, "python": platform.python_version()},
    }


def signature_of(inputs: Sequence[Any], outputs: Sequence[Port], classes: Sequence[str] | None, target: str) -> dict[str, Any]:
    """Raw inputs and named outputs. `target` says in which units a number is predicted."""
    return {
        "inputs": [{"name": one.name, "kind": one.kind, "dtype": one.dtype, "shape": list(one.shape)} for one in inputs],
        "outputs": [port.to_json() for port in outputs],
        "classes": None if classes is None else list(classes),
        "target": target,
    }
