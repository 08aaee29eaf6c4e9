"""Most weights are in a table, and the update of all of them takes longer than everything else."""

import torch
from torch import nn

ids, y = torch.randint(0, 20_000, (4096, 8)), torch.randint(0, 2, (4096,))
model = nn.Sequential(nn.Embedding(20_000, 64), nn.Flatten(), nn.Linear(512, 2))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for step in range(40):
    rows = torch.arange(step * 128, step * 128 + 128) % len(ids)
    loss = nn.functional.cross_entropy(model(ids[rows]), y[rows])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
