"""Can a package take the place of another? And how are the answers of both compared?"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from flatout.base.errors import UsageError
from flatout.packaging.package import Package
from flatout.serving.canary.tally import CLASSES

_BINS = 10


@dataclass(frozen=True)
class AnswerKind:
    """`classes` by name, or `edges` of bins for predictions that are numbers, and their `scale`. Neither: not compared."""

    classes: tuple[str, ...] = ()
    edges: tuple[float, ...] | None = None
    scale: float = 1.0

    @property
    def values(self) -> tuple[str, ...]:
        """The names of what predictions are counted by."""
        if self.edges is None:
            return self.classes
        if not self.edges:
            return ("any number",)
        shown = [f"{edge:.4g}" for edge in self.edges]
        between = [f"{low} to {high}" for low, high in pairwise(shown)]
        return (f"below {shown[0]}", *between, f"above {shown[-1]}")


def check_replaces(stable: Package, canary: Package, name: str) -> None:
    """UsageError if requests for the stable version can't be sent to the other one."""
    if stable.folder.hash == canary.folder.hash:
        raise UsageError(f"the canary {canary.path} is the same package as the one that serves {name}: nothing to compare")
    problems = []
    known = {raw.name: raw for raw in stable.fitted.host.inputs}
    for raw in canary.fitted.host.inputs:
        before = known.get(raw.name)
        if before is None:
            problems.append(f"it needs the input {raw.name!r}, which {name} does not take")
        elif (before.kind, before.dtype, tuple(before.shape)) != (raw.kind, raw.dtype, tuple(raw.shape)):
            problems.append(f"its input {raw.name!r} is {_shown(raw)}; that of {name} is {_shown(before)}")
    outputs = {port.name: port for port in canary.program.outputs}
    for port in stable.program.outputs:
        other = outputs.get(port.name)
        if other is None:
            problems.append(f"it has no output {port.name!r}")
        elif (other.dtype, len(other.shape)) != (port.dtype, len(port.shape)):
            problems.append(f"its output {port.name!r} is {other.dtype}{list(other.shape)}, not {port.dtype}{list(port.shape)}")
    if stable.fitted.host.class_names != canary.fitted.host.class_names:
        problems.append("it has other classes")
    if problems:
        raise UsageError(f"{canary.path} can't take the place of {name}: {'; '.join(problems)}")


def answer_kind(package: Package) -> AnswerKind:
    names, objective = package.fitted.host.class_names, str(package.card["objective"])
    if names is not None and objective in ("classify", "binary"):
        return AnswerKind(tuple(names)) if len(names) <= CLASSES else AnswerKind()
    known = package.samples.outputs.get("prediction")
    if objective != "regress" or known is None or known.dim() != 1:
        return AnswerKind()
    values = known.double().numpy()
    edges = np.unique(np.quantile(values, np.linspace(0, 1, _BINS + 1)[1:-1]))
    spread = float(values.std())
    return AnswerKind((), tuple(map(float, edges)), spread if spread > 0 else 1.0)


def _shown(raw: object) -> str:
    found = vars(raw)
    return " ".join(str(found[name]) for name in ("kind", "dtype") if found.get(name))
