"""Many small layers: the device waits for the next launch."""

import torch
from torch import nn

model = nn.Sequential(*(layer for _ in range(60) for layer in (nn.Linear(128, 128), nn.Tanh()))).cuda()
optimizer = torch.optim.AdamW(model.parameters(), fused=True)
x = torch.randn(256, 128, device="cuda")
for _step in range(60):
    loss = (model(x) - x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
