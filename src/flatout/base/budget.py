"""How long to train: "3 epochs", "2000 steps", "1e9 tokens", "10 min", "5 USD", "200 Wh", "accuracy >= 0.94 within 20 epochs".

Epochs, steps, samples and tokens are *counted*: the same budget means the same number of samples on every machine. Time, money
and energy are *spent*: the amount spent so far is saved in the checkpoint.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from flatout.base.errors import UsageError
from flatout.base.units import is_duration_unit, parse_seconds, split_quantity

COUNTED = ("epochs", "steps", "samples", "tokens")
SPENT = ("seconds", "usd", "wh")
MOST = 1e15  # largest amount in any unit; still exact as a float

_UNITS = {
    "epochs": "epochs", "epoch": "epochs", "ep": "epochs",
    "steps": "steps", "step": "steps", "ba": "steps", "batches": "steps",
    "samples": "samples", "sample": "samples", "rows": "samples", "images": "samples", "sp": "samples",
    "tokens": "tokens", "token": "tokens", "tok": "tokens",
    "usd": "usd", "dollars": "usd", "wh": "wh", "kwh": "kwh", "j": "j",
}  # fmt: skip
_NUMBER = r"[-+]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:e[-+]?[0-9]+)?"
_TARGET = re.compile(rf"\s*([a-z_][a-z0-9_]*)\s*(>=|<=)\s*({_NUMBER})\s+within\s+(.+)", re.IGNORECASE)
_EXAMPLES = "'3 epochs', '2000 steps', '1e9 tokens', '10 min', '5 USD', '200 Wh' or 'accuracy >= 0.94 within 20 epochs'"


@dataclass(frozen=True)
class Target:
    """Stop as soon as an evaluation reaches this value."""

    metric: str
    sense: str
    value: float

    def reached(self, value: float) -> bool:
        return value >= self.value if self.sense == ">=" else value <= self.value

    def __str__(self) -> str:
        return f"{self.metric} {self.sense} {self.value:g}"


@dataclass(frozen=True)
class Budget:
    amount: float
    unit: str
    target: Target | None = None

    @classmethod
    def parse(cls, text: str) -> Budget:
        aim = _TARGET.fullmatch(text)
        if aim:
            within = cls.parse(aim[4]) if _TARGET.fullmatch(aim[4]) is None else None
            if within is None:
                raise UsageError(
                    f"a budget can have only one target, such as 'accuracy >= 0.94 within 20 epochs'; got {text!r}"
                )
            return replace(within, target=Target(aim[1].lower(), aim[2], float(aim[3])))
        try:
            amount, unit = split_quantity(text)
        except UsageError:
            raise UsageError(f"expected a budget such as {_EXAMPLES}; got {text!r}") from None
        if is_duration_unit(unit):
            amount, unit = parse_seconds(text), "seconds"
        elif unit in _UNITS:
            unit = _UNITS[unit]
        else:
            fault = f"unknown budget unit {unit!r}" if unit else "a budget needs a unit"
            raise UsageError(f"{fault}: write {_EXAMPLES}; got {text!r}")
        if unit == "kwh":
            amount, unit = amount * 1000, "wh"
        if unit == "j":
            amount, unit = amount / 3600, "wh"
        if not amount > 0:
            raise UsageError(f"a budget must be greater than 0, got {text!r}")
        if amount > MOST:
            raise UsageError(f"a budget can be at most {MOST:g} {unit}, got {text!r}")
        return cls(amount, unit)

    @property
    def counted(self) -> bool:
        return self.unit in COUNTED

    def samples(self, epoch_samples: int, batch: float, tokens_per_sample: float) -> int:
        """The exact number of samples that a counted budget allows, the same on every machine."""
        per_unit = {"epochs": epoch_samples, "steps": batch, "samples": 1, "tokens": 1 / max(tokens_per_sample, 1)}
        return max(1, round(self.amount * per_unit[self.unit]))

    def __str__(self) -> str:
        names = {"seconds": "s", "usd": "USD", "wh": "Wh"}
        length = f"{self.amount:g} {names.get(self.unit, self.unit)}"
        return f"{self.target} within {length}" if self.target else length
