"""Gradients of four batches, clipped, then one step."""

import torch
from torch import nn

x, y = torch.randn(4096, 768), torch.randn(4096, 8)
model = nn.Sequential(nn.Linear(768, 1024), nn.GELU(), nn.Linear(1024, 8))
optimizer = torch.optim.AdamW(model.parameters(), fused=True)
for step in range(144):
    rows = torch.arange(step * 128, step * 128 + 128) % len(x)
    (nn.functional.mse_loss(model(x[rows]), y[rows]) / 4).backward()
    if step % 4 == 3:
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
