"""A convolutional network in the default layout."""

import torch
from torch import nn

x, y = torch.randn(64, 3, 48, 48), torch.randint(0, 10, (64,))
model = nn.Sequential(
    nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 32, 3, padding=1, stride=2), nn.ReLU(),
    nn.Conv2d(32, 64, 3, padding=1, stride=2), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10),
)  # fmt: skip
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, fused=True)
for step in range(36):
    rows = torch.arange(step * 16, step * 16 + 16) % 64
    loss = nn.functional.cross_entropy(model(x[rows]), y[rows])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
