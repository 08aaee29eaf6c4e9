"""A hundred narrow layers: each operator has next to nothing to do."""

import torch
from torch import nn

x, y = torch.randn(2048, 16), torch.randn(2048, 1)
layers = [layer for _ in range(100) for layer in (nn.Linear(16, 16), nn.Tanh())]
model = nn.Sequential(*layers, nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, fused=True)
for step in range(40):
    rows = torch.arange(step * 64, step * 64 + 64) % len(x)
    loss = nn.functional.mse_loss(model(x[rows]), y[rows])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
