"""A statistic in plain Python, after every step."""

import torch
from torch import nn

x, y = torch.randn(2048, 64), torch.randint(0, 10, (2048,))
model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, fused=True)
smooth = 0.0
for step in range(45):
    rows = torch.arange(step * 128, step * 128 + 128) % len(x)
    loss = nn.functional.cross_entropy(model(x[rows]), y[rows])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    smooth = sum((smooth + k * step) % 7 for k in range(100_000))
