"""Fits spectra that an instrument wrote channel by channel."""

import torch
from torch import nn

torch.manual_seed(0)
channels, shots = 3000, 12_000
recorded = torch.randn(channels, shots)
strength = recorded[:20].sum(0) / 4

model = nn.Sequential(nn.Linear(channels, 32), nn.ReLU(), nn.Linear(32, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)


def batches(size):
    for picked in torch.randperm(shots).split(size):
        yield recorded[:, picked].T, strength[picked]


for epoch in range(2):
    for x, y in batches(100):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x).squeeze(1), y)
        loss.backward()
        optimizer.step()
    print("epoch", epoch, "loss", loss.item())
