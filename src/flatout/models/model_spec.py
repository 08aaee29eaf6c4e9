"""A model as a recipe writes it, with what it starts from: `{timm: resnet50, pretrained: true}`, `{convnet: {channels: [32]},
pretrained: runs/first}`, `{transformers: folder, pretrained: true, lora: {rank: 8}}`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flatout.base.errors import UsageError, did_you_mean
from flatout.base.specs import Spec

LIBRARIES = ("timm", "torchvision", "transformers")
BESIDE = ("pretrained", "head", "lora")  # keys next to the model's name
_LORA = ("rank", "alpha", "dropout", "targets")


@dataclass(frozen=True)
class Lora:
    """Low-rank adapters. `targets`: names of the linear layers that get one; None: those that PEFT knows for the model."""

    rank: int = 8
    alpha: float = 16.0
    dropout: float = 0.0
    targets: tuple[str, ...] | None = None

    @classmethod
    def parse(cls, written: object) -> Lora:
        if not isinstance(written, Mapping):
            raise UsageError(f"lora is written {{rank: 8}} or {{rank: 8, targets: [q_proj, v_proj]}}, got {written!r}")
        strays = [name for name in written if name not in _LORA]
        if strays:
            raise UsageError(f"lora has no option {strays[0]!r}; {did_you_mean(strays[0], _LORA)}")
        rank, targets = written.get("rank", 8), written.get("targets")
        alpha, dropout = written.get("alpha", 2 * rank if isinstance(rank, int) else 16), written.get("dropout", 0.0)
        if not isinstance(rank, int) or isinstance(rank, bool) or rank < 1:
            raise UsageError(f"lora.rank is a whole number, 1 or more, got {rank!r}")
        if not _is_number(alpha) or not alpha > 0:
            raise UsageError(f"lora.alpha is a number above 0, got {alpha!r}")
        if not _is_number(dropout) or not 0 <= dropout < 1:
            raise UsageError(f"lora.dropout is a number from 0 to below 1, got {dropout!r}")
        targets = [targets] if isinstance(targets, str) else targets
        if targets is not None and (not isinstance(targets, list | tuple) or not targets or not all(map(_is_name, targets))):
            raise UsageError(f"lora.targets is a list of names of layers, such as [q_proj, v_proj], got {targets!r}")
        return cls(rank, float(alpha), float(dropout), None if targets is None else tuple(targets))

    def written(self) -> dict[str, Any]:
        targets = {} if self.targets is None else {"targets": list(self.targets)}
        return {"rank": self.rank, "alpha": self.alpha, "dropout": self.dropout, **targets}


@dataclass(frozen=True)
class ModelSpec:
    """`pretrained`: False, True (the library's own weights), or a path, or the name of one of the library's sets of weights."""

    spec: Spec
    pretrained: bool | str = False
    keeps_head: bool = False
    lora: Lora | None = None

    @classmethod
    def parse(cls, written: object) -> ModelSpec:
        if not isinstance(written, Mapping) or not set(written) & {*BESIDE}:
            return cls(Spec.parse(written))._checked()
        named = {key: value for key, value in written.items() if key not in BESIDE}
        if len(named) != 1:
            what = f"{', '.join(map(repr, named))}" if named else "no model"
            raise UsageError(
                f"expected one model next to {', '.join(BESIDE)}, such as {{timm: resnet50, pretrained: true}}; got {what}"
            )
        pretrained, head = written.get("pretrained", False), written.get("head", "new")
        if isinstance(pretrained, Path):
            pretrained = str(pretrained)
        if not isinstance(pretrained, bool | str) or pretrained == "":
            raise UsageError(f"pretrained is true, or the path of weights or of a run, got {pretrained!r}")
        if head not in ("new", "keep"):
            raise UsageError(f"head is new or keep, got {head!r}")
        lora = None if written.get("lora") is None else Lora.parse(written["lora"])
        return cls(Spec.parse(named), pretrained, head == "keep", lora)._checked()

    def _checked(self) -> ModelSpec:
        name = self.spec.name
        if self.library is None and self.pretrained is True:
            raise UsageError(
                f"pretrained: true needs a model of {', '.join(LIBRARIES)}; for {name} give the weights: pretrained: runs/NAME"
            )
        if self.library is not None:
            self.architecture  # noqa: B018  raises here if it is not written as it should be
        if self.lora is not None and self.library != "transformers":
            raise UsageError(f"lora needs a model of transformers, this is {name}: use freeze and rates")
        return self

    @property
    def library(self) -> str | None:
        return self.spec.name if self.spec.name in LIBRARIES else None

    @property
    def architecture(self) -> Spec:
        """Of a library's model: its name in the library, and the options for the library's own constructor."""
        library, inner = self.spec.name, self.spec.value if self.spec.value is not None else dict(self.spec.options)
        if isinstance(inner, Path):
            inner = str(inner)
        if not inner or not isinstance(inner, str | Mapping):
            raise UsageError(
                f"{library} needs the name of a model, such as {{{library}: NAME, pretrained: true}}; got {inner or None!r}"
            )
        if isinstance(inner, Mapping) and len(inner) != 1:
            raise UsageError(
                f"options of the model belong under its name: {{{library}: {{NAME: {{option: value}}}}}}; got {inner!r}"
            )
        found = Spec.parse(inner)
        if found.value is not None:
            raise UsageError(f"{found.name} takes options by name, got {found.value!r}")
        return found

    def written(self) -> Any:
        """As in a recipe file; `parse` restores it."""
        beside: dict[str, Any] = {} if self.pretrained is False else {"pretrained": self.pretrained}
        beside |= {"head": "keep"} if self.keeps_head else {}
        beside |= {} if self.lora is None else {"lora": self.lora.written()}
        spec = self.spec.written()
        if not beside:
            return spec
        return {**(spec if isinstance(spec, Mapping) else {spec: None}), **beside}


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_name(value: object) -> bool:
    return isinstance(value, str) and bool(value)
