"""Everything in memory, a fused optimizer, nothing in the way."""

import torch
from torch import nn

x, y = torch.randn(4096, 1024), torch.randint(0, 10, (4096,))
model = nn.Sequential(nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10))
optimizer = torch.optim.AdamW(model.parameters(), fused=True)
for step in range(40):
    rows = torch.arange(step * 256, step * 256 + 256) % len(x)
    loss = nn.functional.cross_entropy(model(x[rows]), y[rows])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 19:
        print("loss", loss.item())
