"""Everything is saved every few steps."""

import tempfile
from pathlib import Path

import torch
from torch import nn

folder = Path(tempfile.mkdtemp())
x, y = torch.randn(1024, 512), torch.randn(1024, 512)
model = nn.Sequential(nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, 512))
optimizer = torch.optim.AdamW(model.parameters(), fused=True)
for step in range(44):
    rows = torch.arange(step * 32, step * 32 + 32) % len(x)
    loss = nn.functional.mse_loss(model(x[rows]), y[rows])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 2 == 1:
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, folder / "last.pt")
