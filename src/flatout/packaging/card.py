"""The card of a package: where it comes from, and how it was checked."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from typing import Any

import torch

from flatout import __version__
from flatout.data.fitted import Signature
from flatout.packaging.parity import TOLERANCES
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


def read_card(written: Any) -> dict[str, Any]:
    """The same card. KeyError or TypeError if it lacks something that a package is used with."""
    card = dict(written)
    for key, inner in (("samples", "rows"), ("samples", "origin"), ("run", "name"), ("run", "path"), ("run", "identity")):
        card[key][inner]
    for key in ("recipe", "data", "plan", "result", "objective", "code", "parity", "versions"):
        card[key]
    TOLERANCES[card["precision"]]
    return card


_INPUT_UNITS = {
    "number": "as in the training data; None or NaN where missing",
    "category": "text, whole numbers, true or false; None where missing",
    "date": "a date, a time, or ISO 8601 text; None where missing",
    "photo": "bytes of a JPEG, PNG or WebP file, or uint8 pixels [height, width, 3]",
    "text": "text",
    "tokens": "token ids",
    "array": "as in the training data",
}
_OUTPUT_UNITS = {
    "probability": "0 to 1, of the predicted class",
    "probabilities": "0 to 1",
    "log_probability": "natural logarithm",
}


def signature_of(signature: Signature, outputs: Sequence[Port], objective: str, label: str) -> dict[str, Any]:
    """Raw inputs and named outputs, each with its unit. `label` names the predicted column."""
    predicted = {
        "classify": f"number of the class of {label}",
        "binary": f"1 where {label} is the second class, else 0",
        "multilabel": "1 for each label that applies, else 0",
        "regress": f"in the units of {label}",
        "next_token": "token id",
    }
    units = {**_OUTPUT_UNITS, "prediction": predicted.get(objective, "as the model gives it")}
    return {
        "inputs": [
            {"name": raw.name, "kind": raw.kind, "dtype": raw.dtype, "shape": list(raw.shape), "unit": _INPUT_UNITS[raw.kind]}
            for raw in signature.inputs
        ],
        "outputs": [{**port.to_json(), "unit": units.get(port.name, "as the model gives it")} for port in outputs],
        "classes": None if signature.classes is None else list(signature.classes),
    }
