"""Half of the model is never asked."""

import torch
from torch import nn


class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.used = nn.Sequential(nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, 10))
        self.forgotten = nn.Sequential(nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, 10))

    def forward(self, x):
        return self.used(x)


model = Two()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, fused=True)
x, y = torch.randn(2048, 512), torch.randint(0, 10, (2048,))
for step in range(40):
    rows = torch.arange(step * 128, step * 128 + 128) % len(x)
    loss = nn.functional.cross_entropy(model(x[rows]), y[rows])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
