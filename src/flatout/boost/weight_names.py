"""Names of weights in a proof: their names in the models that the script calls, the same in every trial."""

from __future__ import annotations

from torch import Tensor, nn
from torch.utils.weak import WeakIdKeyDictionary


class WeightNames:
    def __init__(self) -> None:
        self._names = WeakIdKeyDictionary()
        self._taken: set[str] = set()

    def note(self, module: nn.Module) -> None:
        """Gives each name once. Models are called in the same order in every trial."""
        for name, weight in module.named_parameters():
            free = [one for one in (name, f"{name} of {type(module).__name__}") if one not in self._taken]
            if free and weight not in self._names:
                self._names[weight] = free[0]
                self._taken.add(free[0])

    def of(self, weight: Tensor, by_its_place: str) -> str:
        """The weight's name in the model, or its position if no known model has it."""
        return str(self._names.get(weight, by_its_place))
