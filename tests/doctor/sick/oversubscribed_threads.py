"""Far more threads than there are cores."""

import torch
from torch import nn

torch.set_num_threads(32)
x, y = torch.randn(1024, 256), torch.randint(0, 10, (1024,))
model = nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, fused=True)
for step in range(36):
    rows = torch.arange(step * 128, step * 128 + 128) % len(x)
    loss = nn.functional.cross_entropy(model(x[rows]), y[rows])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
