"""Start from existing weights: load them, freeze some, train some with a lower rate. Parameters are selected by glob."""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

import torch
from torch import Tensor, nn

from flatout.base.errors import ModelError, did_you_mean
from flatout.base.manifest import Manifest
from flatout.models.dataless import is_dataless
from flatout.models.parts import head_modules, parameters_in

WEIGHTS_FILE = "model.safetensors"


def load_pretrained(model: nn.Module, path: Path, *, keeps_head: bool) -> None:
    """Weights of the same architecture, from a file, a folder or a run. Without `keeps_head` the model's own head stays."""
    skip = [] if keeps_head else [f"{name}.*" for name in head_modules(model)]
    try:
        load_weights(model, path, skip, can_skip=False)
    except ModelError as error:
        raise ModelError(f"pretrained: {error}{_architecture_of(path)}") from error


def _architecture_of(path: Path) -> str:
    """What a run was trained with, for an error."""
    try:
        written = json.loads((path / "recipe.json").read_text())["model"]
    except (OSError, ValueError, LookupError, TypeError):
        return ""
    return f"\n  {path} was trained with model: {json.dumps(written)}"


def load_weights(model: nn.Module, path: str | Path, skip: Sequence[str] = (), *, can_skip: bool = True) -> tuple[str, ...]:
    """Copy weights from a .safetensors file or a run folder into `model`, except names that match `skip`.

    `can_skip`: whether the user can write `skip`, for the error.
    """
    try:
        file = _weights_file(Path(path))
    except (OSError, ValueError) as error:  # not a possible file name
        raise ModelError(f"no weights at {path}: {error}") from error
    if file.name == WEIGHTS_FILE:  # in a run folder, or another folder with a manifest
        Manifest(file.parent, lambda name: "restore it from a copy, or use other weights").check(file.name)
    try:
        stored = _without_numbers(file) if is_dataless(model) else _read(file)
    except Exception as error:
        raise ModelError(f"{file} can't be read as safetensors: {error}") from error
    own = {name: value for name, value in model.state_dict().items() if isinstance(value, Tensor)}
    skipped = set(_matching(skip, {**own, **stored}, "skip"))
    wanted = {name: value for name, value in own.items() if name not in skipped}
    offered = {name: value for name, value in stored.items() if name not in skipped}
    ties = _ties(model)
    tied = {name for group in ties if any(member in offered for member in group) for name in group}
    mismatches = {
        "in the model but not in the file": sorted(wanted.keys() - offered.keys() - tied),
        "in the file but not in the model": sorted(offered.keys() - wanted.keys()),
        "different shape": [
            f"{name} (model {tuple(wanted[name].shape)}, file {tuple(offered[name].shape)})"
            for name in sorted(wanted.keys() & offered.keys())
            if wanted[name].shape != offered[name].shape
        ],
        "one tensor in the model, several in the file": [
            ", ".join(group) for group in ties if not _all_equal([offered[name] for name in group if name in offered])
        ],
    }
    if any(mismatches.values()):
        raise ModelError(_mismatch_message(file, mismatches, can_skip))
    if not is_dataless(model):
        with torch.no_grad():
            for name, value in offered.items():
                wanted[name].copy_(value)
    return tuple(offered)


def _read(file: Path) -> dict[str, Tensor]:
    from safetensors.torch import load_file

    return load_file(file)


def _without_numbers(file: Path) -> dict[str, Tensor]:
    """Names and shapes only, for a model without data."""
    from safetensors import safe_open

    with safe_open(file, framework="pt") as stored:
        return {name: torch.empty(stored.get_slice(name).get_shape(), device="meta") for name in stored.keys()}  # noqa: SIM118


def freeze(model: nn.Module, patterns: Sequence[str]) -> tuple[str, ...]:
    """Stop training the parameters that match, such as "backbone" or "blocks.0.*"; returns their names."""
    parameters = dict(model.named_parameters())
    names = parameters_in(model, patterns, "freeze")
    if patterns and not any(p.requires_grad for name, p in parameters.items() if name not in names):
        raise ModelError(f"freeze {list(patterns)} leaves no parameter to train: freeze fewer")
    for name in names:
        parameters[name].requires_grad_(False)
    return names


def rates(model: nn.Module, factors: Mapping[str, float]) -> dict[str, float]:
    """The learning rate factor of every parameter: 1 without a matching pattern; the last matching pattern wins."""
    found = {name: 1.0 for name, _ in model.named_parameters()}
    for pattern, factor in factors.items():
        if not factor > 0:
            raise ModelError(f"rates: the factor of {pattern!r} must be greater than 0, got {factor}; or freeze it")
        for name in parameters_in(model, [pattern], "rates"):
            found[name] = float(factor)
    return found


def _matching(patterns: Sequence[str], names: Mapping[str, object], argument: str) -> tuple[str, ...]:
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in names):
            # a large model has thousands of names: show only the first level unless a similar name exists
            known = difflib.get_close_matches(pattern, names, n=1) or {
                f"{name.partition('.')[0]}.*" for name in names if "." in name
            }
            raise ModelError(f"{argument}: no parameter matches {pattern!r}; {did_you_mean(pattern, known)}")
    return tuple(name for name in names if any(fnmatchcase(name, pattern) for pattern in patterns))


def _weights_file(path: Path) -> Path:
    file = path / WEIGHTS_FILE if path.is_dir() else path
    if path.suffix in (".pt", ".pth", ".bin", ".ckpt"):
        raise ModelError(
            f"{path} is a pickle file, which can run code when opened: if you trust it, convert it with "
            f"safetensors.torch.save_model(model, {path.with_suffix('.safetensors').name!r})"
        )
    if not file.is_file():
        expected = f"a run folder with {WEIGHTS_FILE}" if path.is_dir() else "a .safetensors file or a finished run's folder"
        raise ModelError(f"no weights at {path}: expected {expected}")
    return file


def _ties(model: nn.Module) -> list[list[str]]:
    """Groups of names that share one tensor, which a file may contain only once."""
    names: dict[int, list[str]] = {}
    for name, value in (*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)):
        names.setdefault(id(value), []).append(name)
    return [group for group in names.values() if len(group) > 1]


def _all_equal(values: Sequence[Tensor]) -> bool:
    if any(value.device.type == "meta" for value in values):
        return True  # can't be compared without data; the run will check
    return all(torch.equal(value, values[0]) for value in values[1:])


def _mismatch_message(file: Path, mismatches: Mapping[str, Sequence[str]], can_skip: bool, most: int = 8) -> str:
    lines = [f"{file} does not fit the model:"]
    for kind, names in mismatches.items():
        if names:
            more = f" and {len(names) - most} more" if len(names) > most else ""
            lines.append(f"  {kind}: {', '.join(names[:most])}{more}")
    differing = [name.partition(" ")[0].rstrip(",") for names in mismatches.values() for name in names]
    if not can_skip:
        lines.append(f"  {len(differing)} tensors differ: write the model with the architecture and options of these weights")
    elif len(differing) <= most:
        lines.append(f"  to load the rest and keep these as they are in the model, set skip: {differing}")
    else:
        lines.append(
            f"  {len(differing)} tensors differ: is it the same model? To load the rest, name these by glob: skip: ['head.*']"
        )
    return "\n".join(lines)
