"""The running loss remembers how every one of its parts was computed."""

import torch
from torch import nn

x, y = torch.randn(2048, 128), torch.randint(0, 10, (2048,))
model = nn.Sequential(nn.Linear(128, 256), nn.ReLU(), nn.Linear(256, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, fused=True)
total = 0
for step in range(40):
    rows = torch.arange(step * 128, step * 128 + 128) % len(x)
    loss = nn.functional.cross_entropy(model(x[rows]), y[rows])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    total += loss
