"""Your own model: any torch.nn.Module. `flatout run examples/own_model.py` trains this one on the built-in digits.

flatout looks for the name `recipe`: a Recipe, or a function that returns one.
"""

from __future__ import annotations

from torch import Tensor, nn

import flatout as fo


class Residual(nn.Module):
    """Adds a small change to x, so that deep stacks still train."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.change = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.change(self.norm(x))


class MyNet(nn.Module):
    """flatout calls it without arguments, so all of them have defaults."""

    def __init__(self, width: int = 64, depth: int = 3) -> None:
        super().__init__()
        self.enter = nn.Linear(8 * 8, width)
        self.blocks = nn.ModuleList(Residual(width) for _ in range(depth))
        self.head = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.enter(x.flatten(1))
        for block in self.blocks:
            x = block(x)
        return self.head(x)


recipe = fo.Recipe(
    data=fo.data.digits(holdout=0.2),
    model=MyNet,
    objective="classify",
    batch=64,
    lr=2e-3,
    budget="10 epochs",
)
