"""Which trackers a run has, as they are written: `tensorboard`, `mlflow=http://host:5000`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec

from flatout.base.errors import UsageError, did_you_mean

NEEDS: Mapping[str, str | None] = {"tensorboard": None, "mlflow": "mlflow", "wandb": "wandb", "csv": None, "jsonl": None}
"""Each tracker, and the module that must be installed for it."""
_INSTALL = {"mlflow": "mlflow-skinny", "wandb": "wandb"}


@dataclass(frozen=True)
class Track:
    """`target`: a folder, file, URI or project; empty: the tracker's default."""

    name: str
    target: str = ""

    def why_not(self) -> str:
        """Why it can't run here; empty: nothing is known against it."""
        module = NEEDS[self.name]
        if module is None or find_spec(module) is not None:
            return ""
        return f"{module} is not installed: pip install {_INSTALL[self.name]}"

    def __str__(self) -> str:
        return f"{self.name}={self.target}" if self.target else self.name


def parse_tracks(written: Iterable[str]) -> tuple[Track, ...]:
    """Each once, the later target of the same tracker counts."""
    if isinstance(written, str):
        written = (written,)
    found: dict[str, Track] = {}
    for one in written:
        name, equals, target = str(one).partition("=")
        name = name.strip().lower()
        if name not in NEEDS:
            raise UsageError(f"track: no tracker {one!r}; {did_you_mean(name, NEEDS)}")
        if equals and not target.strip():
            raise UsageError(f"track: {one!r} names no place after the =; write {name}, or {name}=PLACE")
        found[name] = Track(name, target.strip())
    return tuple(found.values())
