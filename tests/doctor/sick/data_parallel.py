"""nn.DataParallel where there is nothing to be parallel on."""

import torch
from torch import nn

x, y = torch.randn(2048, 256), torch.randint(0, 10, (2048,))
model = nn.DataParallel(nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 10)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, fused=True)
for step in range(40):
    rows = torch.arange(step * 128, step * 128 + 128) % len(x)
    loss = nn.functional.cross_entropy(model(x[rows]), y[rows])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
