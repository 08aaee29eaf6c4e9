"""Validation without gradients, and with dropout."""

import torch
from torch import nn

x, y = torch.randn(2048, 256), torch.randint(0, 10, (2048,))
model = nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Dropout(0.5), nn.Linear(256, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, fused=True)
for step in range(48):
    rows = torch.arange(step * 128, step * 128 + 128) % len(x)
    loss = nn.functional.cross_entropy(model(x[rows]), y[rows])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 12 == 11:
        with torch.no_grad():
            wrong = sum(int((model(part).argmax(1) != of).sum()) for part, of in zip(x.split(256), y.split(256), strict=True))
