"""The optimizer computes the loss by itself, and batches have other sizes."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for step in range(3000):
    x = torch.randn(8 + step % 5, 16)

    def closure():
        optimizer.zero_grad()
        loss = F.mse_loss(model(x).squeeze(1), x.sum(1))  # noqa: B023
        loss.backward()
        return loss

    optimizer.step(closure)
