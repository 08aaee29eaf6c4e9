"""The unmodified script's compared steps in a file, and comparisons with them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from flatout.boost.compared_steps import ComparedSteps
from flatout.measure.differences import StepSnapshot
from flatout.measure.proof import check_step, repeat_noise
from flatout.measure.step_noise import StepNoise

COMPARED_BATCHES = 3
# the largest relative change of a weight that shows how a precision changes a step: twice its rounding, because activations
# are rounded too
SHAKEN = {"fp32": 2.0**-22, "tf32": 2.0**-10, "bf16": 2.0**-8}
_NOT_REACHED = "the script has too few steps"

Noise = Mapping[str, Any]  # sizes and number of repeats by precision, as `PlaceNoise.noise` tells them


@dataclass(frozen=True)
class KeptSteps:
    snapshots: Mapping[int, StepSnapshot]
    states: Mapping[int, Mapping[str, Any]]

    @classmethod
    def of(cls, compared: ComparedSteps, places: Sequence[int]) -> KeptSteps:
        found = {at: compared.snapshot(at) for at in places}
        return cls({at: _lean(one) for at, one in found.items() if one is not None}, compared.states)

    def write(self, path: Path) -> None:
        snapshots = {at: {name: _to_cpu(value) for name, value in vars(one).items()} for at, one in self.snapshots.items()}
        torch.save({"snapshots": snapshots, "states": dict(self.states)}, path)

    @classmethod
    def read(cls, path: Path) -> KeptSteps:
        written = torch.load(path, weights_only=True, map_location="cpu", mmap=True)
        snapshots = {at: StepSnapshot(**{**one, "losses": tuple(one["losses"])}) for at, one in written["snapshots"].items()}
        return cls(snapshots, written["states"])

    def repeated_by(self, compared: ComparedSteps, precision: str, device: torch.device) -> tuple[dict[str, Any], ...]:
        """How far an unmodified run is from this one at each place: whether it is within the limits as they are (`agrees`), or
        why it is not even within limits that its own differences widen (`why`)."""
        found = []
        for at, kept in self.snapshots.items():
            here, mine = kept.to(device), compared.snapshot(at)
            if mine is None:
                found.append({"at": at, "agrees": False, "why": _NOT_REACHED, "sizes": []})
                continue
            plainly = check_step(here, mine, precision)
            widened = check_step(here, mine, precision, mine)
            sizes = repeat_noise(here, mine, precision).to_list()
            why = "" if widened.passed else widened.why
            differs = why or ("" if plainly.passed else plainly.why)
            found.append({"at": at, "agrees": not differs, "differs": differs, "why": why, "sizes": sizes})
        return tuple(found)

    def checked(
        self, compared: ComparedSteps, at: int, precision: str, noise: Noise | None, device: torch.device
    ) -> dict[str, Any]:
        kept, mine = self.snapshots.get(at), compared.snapshot(at)
        if kept is None or mine is None:
            return {"passed": False, "why": f"not enough evidence: {_NOT_REACHED}", "figures": {}}
        own = StepNoise()
        for one in ("fp32", precision):
            if one in (noise or {}):
                assert noise is not None
                own = own.with_more(StepNoise.from_list(noise[one]["sizes"], noise[one]["repeats"]))
            if one == precision:
                break
        found = asdict(check_step(kept.to(device), mine, precision, noise=own))
        return {**found, "why": _with_place(found["why"], at, own.repeats) if found["passed"] else found["why"]}


def _with_place(why: str, at: int, repeats: int) -> str:
    if at:
        why = why.replace("one step agrees", f"step {at + 1} agrees", 1)
    return why + (f"; limits include the noise of {repeats + 1} unmodified runs" if repeats else "")


def _lean(kept: StepSnapshot) -> StepSnapshot:
    """An update is compared with the one expected in the same run: of these, the names and sizes are enough."""
    first = {name: update[:1].clone() for name, update in kept.expected.items()}
    before = {name: weight[:1].clone() if name in first else weight for name, weight in kept.before.items()}
    return replace(kept, updates={name: torch.empty(0) for name in kept.updates}, expected=first, before=before)


def _to_cpu(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _to_cpu(one) for name, one in value.items()}
    if isinstance(value, Tensor):
        return value.cpu()
    return list(value) if isinstance(value, tuple) else value
