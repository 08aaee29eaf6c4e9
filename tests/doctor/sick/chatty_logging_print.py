"""Weights are printed in every step."""

import torch
from torch import nn

torch.set_printoptions(threshold=100_000)
x, y = torch.randn(2048, 64), torch.randint(0, 10, (2048,))
model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, fused=True)
for step in range(45):
    rows = torch.arange(step * 256, step * 256 + 256) % len(x)
    loss = nn.functional.cross_entropy(model(x[rows]), y[rows])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("step", step, "loss", loss.item(), "head", model[2].weight[:2])
