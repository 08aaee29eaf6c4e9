"""Learns next-day returns from volumes and prices."""

import numpy as np
import torch
from torch import nn

rng = np.random.default_rng(0)
volume = rng.poisson(4.0, (6000, 16)).astype(np.float32)
price = rng.normal(100, 5, (6000, 16)).astype(np.float32)


def features(rows):
    v = torch.from_numpy(volume[rows])
    p = torch.from_numpy(price[rows])
    return torch.cat([torch.log(v), (p - 100.0) / 5.0], dim=1)


target = torch.from_numpy((price[:, :1] - 100) / 5 + 0.1 * rng.normal(size=(6000, 1)).astype(np.float32)).float()
model = nn.Sequential(nn.Linear(32, 700), nn.Tanh(), nn.Linear(700, 700), nn.Tanh(), nn.Linear(700, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=5e-4)

for epoch in range(4):
    order = rng.permutation(5000)
    for k in range(0, 5000, 125):
        rows = order[k : k + 125]
        loss = nn.functional.mse_loss(model(features(rows)), target[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        held = nn.functional.mse_loss(model(features(np.arange(5000, 6000))), target[5000:])
    print("epoch", epoch, "held-out", held.item())
