"""Two samples at a time."""

import torch
from torch import nn

x, y = torch.randn(512, 64), torch.randint(0, 10, (512,))
model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, fused=True)
for step in range(150):
    rows = torch.arange(step * 2, step * 2 + 2) % len(x)
    loss = nn.functional.cross_entropy(model(x[rows]), y[rows])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
