"""Outputs in their places: their content, and what of it others depend on."""

from __future__ import annotations

from collections.abc import Mapping

from flatout.pipelines.identity.hashing import digest_of_bytes
from flatout.pipelines.identity.inputs import InputHashes
from flatout.pipelines.stages.deployed import in_use, package_id
from flatout.pipelines.stages.resolved import ResolvedStage

# The files that later stages depend on; the others hold times and places, which differ each time.
_PACKAGE = ("program.json", "code.json", "weights.safetensors", "fitted.json", "signature.json", "samples.safetensors")
_MEANING = {
    "train": ("model.safetensors", "recipe.json", "data.json"),
    "tune": ("best.yaml",),
    "export": _PACKAGE,
    "shrink": _PACKAGE,
}
REPEATABLE = ("run", "train", "export", "evaluate")  # two makings with one key have the same content


def contents(stage: ResolvedStage, hashes: InputHashes) -> dict[str, str] | None:
    """The content of each output; None if one is not there."""
    if stage.kind == "deploy":
        now = in_use(stage.product)
        return None if now is None else {now.name: package_id(now)}
    found = {}
    for place, output in enumerate(stage.outputs):
        if not output.exists():
            return None
        found[str(place)] = hashes.of(output).digest
    return found


def meaning(stage: ResolvedStage, found: Mapping[str, str], hashes: InputHashes) -> str:
    """The digest of what stages that use this one depend on."""
    names = _MEANING.get(stage.kind)
    if names is None:
        parts = [f"{name} {digest}" for name, digest in sorted(found.items())]
    else:
        files = [stage.product / name for name in names]
        parts = [f"{path.name} {hashes.of(path).digest}" for path in files if path.is_file()]
    return digest_of_bytes("\n".join(parts).encode())[:32]
