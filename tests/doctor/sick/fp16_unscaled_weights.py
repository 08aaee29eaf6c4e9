"""The weights themselves are float16."""

import torch
from torch import nn

x, y = torch.randn(2048, 128).half(), torch.randint(0, 10, (2048,))
model = nn.Sequential(nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 10)).half()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(40):
    rows = torch.arange(step * 64, step * 64 + 64) % len(x)
    loss = nn.functional.cross_entropy(model(x[rows]).float(), y[rows])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
