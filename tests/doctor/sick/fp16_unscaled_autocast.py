"""float16 by autocast, and no GradScaler."""

import torch
from torch import nn

x, y = torch.randn(2048, 128), torch.randint(0, 10, (2048,))
model = nn.Sequential(nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, fused=True)
for step in range(40):
    rows = torch.arange(step * 64, step * 64 + 64) % len(x)
    with torch.autocast("cpu", dtype=torch.float16):
        loss = nn.functional.cross_entropy(model(x[rows]).float(), y[rows])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
