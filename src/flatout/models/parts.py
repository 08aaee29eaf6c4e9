"""The parts of a model by name: `backbone` and `head`, any module (`layer4`), any glob of parameter names (`blocks.*.norm.*`).

The head is what depends on the task: the last layer. The backbone is everything else.
"""

from __future__ import annotations

import difflib
import sys
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from torch import nn

from flatout.base.errors import ModelError, did_you_mean

_MOST = 12  # parts that an error lists


def head_modules(model: nn.Module) -> tuple[str, ...]:
    """Paths of the modules that are the head; empty if there is none."""
    adapted = _inside_adapters(model)
    if adapted is not None:
        prefix, inner = adapted
        return tuple(f"{prefix}.{name}" for name in head_modules(inner))
    named = _named_by_timm(model) or _beside_the_base(model)
    if named:
        return named
    if "head" in dict(model.named_children()):
        return ("head",)
    linear = [name for name, module in model.named_modules() if isinstance(module, nn.Linear)]
    return tuple(linear[-1:]) if linear != [""] else ()


def part_parameters(model: nn.Module) -> dict[str, tuple[str, ...]]:
    """Names of the parameters of backbone and head, and of the model's own first-level modules."""
    names = [name for name, _ in model.named_parameters()]
    heads = head_modules(model)
    head = tuple(name for name in names if any(_is_inside(name, module) for module in heads))
    found = {"backbone": tuple(name for name in names if name not in set(head)), "head": head}
    for child, _ in model.named_children():  # a module of that name wins
        found[child] = tuple(name for name in names if _is_inside(name, child))
    return {part: inside for part, inside in found.items() if inside}


def parameters_in(model: nn.Module, patterns: Sequence[str], argument: str) -> tuple[str, ...]:
    """Names of the parameters that a pattern names, in the order of the model. `argument` is for the error."""
    names = [name for name, _ in model.named_parameters()]
    chosen: set[str] = set()
    parts: Mapping[str, tuple[str, ...]] | None = None
    for pattern in patterns:
        found = [name for name in names if fnmatchcase(name, pattern) or fnmatchcase(name, f"{pattern}.*")]
        if not found:
            parts = part_parameters(model) if parts is None else parts
            found = list(parts.get(pattern, ()))
        if not found:
            raise ModelError(f"{argument}: no parameter or module matches {pattern!r}; {_known(model, pattern, names)}")
        chosen.update(found)
    return tuple(name for name in names if name in chosen)


def _known(model: nn.Module, pattern: str, names: Sequence[str]) -> str:
    modules = [name for name, _ in model.named_modules() if name]
    if near := difflib.get_close_matches(pattern, ["backbone", "head", *names, *modules], n=1):
        return did_you_mean(pattern, near)
    sizes = {name: parameter.numel() for name, parameter in model.named_parameters()}
    parts = [f"{part} ({sum(sizes[name] for name in inside):,})" for part, inside in part_parameters(model).items()]
    more = f" and {len(parts) - _MOST} more" if len(parts) > _MOST else ""
    return f"its parts, with their number of weights: {', '.join(parts[:_MOST])}{more}"


def _is_inside(name: str, module: str) -> bool:
    return name == module or name.startswith(f"{module}.")


def _inside_adapters(model: nn.Module) -> tuple[str, nn.Module] | None:
    """The model that PEFT has wrapped, and where it is."""
    library: Any = sys.modules.get("peft")  # without it no model can be of it
    if library is None or not isinstance(model, library.PeftModel):
        return None
    return "base_model.model", model.get_submodule("base_model.model")


def _named_by_timm(model: nn.Module) -> tuple[str, ...]:
    """The classifier that a model of timm names in its configuration."""
    known = getattr(model, "pretrained_cfg", None) if "timm" in sys.modules else None
    named = known.get("classifier") if isinstance(known, Mapping) else getattr(known, "classifier", None)
    return (named,) if isinstance(named, str) else tuple(named or ())


def _beside_the_base(model: nn.Module) -> tuple[str, ...]:
    """A model of transformers names its backbone: the head is all that is beside it."""
    library: Any = sys.modules.get("transformers")
    if library is None or not isinstance(model, library.PreTrainedModel) or model.base_model is model:
        return ()
    prefix = str(model.base_model_prefix)
    return tuple(name for name, child in model.named_children() if name != prefix and any(True for _ in child.parameters()))
