"""A wrapped model, four backward passes for each step, and a GradScaler that is already there."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
model = nn.DataParallel(nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 4)))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
x, y = torch.randn(512, 16), torch.randint(0, 4, (512,))
for step in range(6000):
    rows = torch.arange(8 * step, 8 * step + 8) % 512
    with torch.autocast("cpu", torch.bfloat16):
        loss = F.cross_entropy(model(x[rows]), y[rows]) / 4
    scaler.scale(loss).backward()
    if step % 4 == 3:
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
