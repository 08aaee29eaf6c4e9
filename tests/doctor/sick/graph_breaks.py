"""torch.compile, and a decision on a value in the middle of the model."""

import torch
from torch import nn


class Gated(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(4))

    def forward(self, x):
        for layer in self.layers:
            x = torch.tanh(layer(x))
            if float(x.mean()) > 10:
                x = x / 2
        return x


x = torch.randn(2048, 64)
model = torch.compile(Gated(), backend="eager")
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, fused=True)
for step in range(40):
    rows = torch.arange(step * 128, step * 128 + 128) % len(x)
    loss = (model(x[rows]) - x[rows]).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
