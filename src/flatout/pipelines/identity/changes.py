"""What is different between two identities of a stage's code, in sentences."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

from flatout.pipelines.identity.code import CodeIdentity, CodePart

_MOST = 8


def what_changed(before: CodeIdentity, after: CodeIdentity) -> tuple[str, ...]:
    """Nothing if the digests are equal. The order of statements is said only where nothing else of the module changed."""
    old, new = _by_name(before.parts), _by_name(after.parts)
    changed = [f"{name} changed" for name in new if name in old and old[name] != new[name]]
    added = [f"{name} is new" for name in new if name not in old]
    gone = [f"{name} is gone" for name in old if name not in new]
    found = [*changed, *added, *gone]
    telling = [one for one in found if ": order of statements " not in one]
    shown = list(islice(telling or found, _MOST))
    rest = len(telling or found) - len(shown)
    return (*shown, *([f"and {rest} more"] if rest else []))


def _by_name(parts: Iterable[CodePart]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for part in parts:
        found.setdefault(part.name, []).append(part.digest)
    return found
