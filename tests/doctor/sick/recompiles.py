"""Sequences of every length, and a compiler that was told that lengths are fixed."""

import torch
from torch import nn

torch._dynamo.config.recompile_limit = 64
model = torch.compile(nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64)), backend="eager", dynamic=False)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, fused=True)
for step in range(45):
    x = torch.randn(32 + step, 64)
    loss = model(x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
