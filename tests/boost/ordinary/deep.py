"""Deep, with batch norm and random weights: rounding alone changes the first gradients."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
layers = [part for _ in range(10) for part in (nn.Linear(24, 24), nn.BatchNorm1d(24), nn.ReLU())]
model = nn.Sequential(nn.Linear(16, 24), *layers, nn.Linear(24, 4))
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
centers = torch.randn(4, 16)
for _ in range(3000):
    y = torch.randint(0, 4, (32,))
    loss = F.cross_entropy(model(centers[y] + torch.randn(32, 16)), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
