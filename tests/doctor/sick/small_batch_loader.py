"""A loader with the default batch size, which is one."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

data = TensorDataset(torch.randn(150, 48), torch.randn(150, 1))
model = nn.Sequential(nn.Linear(48, 96), nn.ReLU(), nn.LayerNorm(96), nn.Linear(96, 96), nn.ReLU(), nn.Linear(96, 1))
optimizer = torch.optim.AdamW(model.parameters(), fused=True)
for x, y in DataLoader(data):
    loss = nn.functional.mse_loss(model(x), y)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
