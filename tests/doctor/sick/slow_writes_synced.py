"""A log of one's own that waits for the disk in each step."""

import json
import os
import tempfile

import torch
from torch import nn

x, y = torch.randn(2048, 64), torch.randn(2048, 1)
model = nn.Sequential(nn.Linear(64, 128), nn.Tanh(), nn.Linear(128, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, fused=True)
with tempfile.TemporaryDirectory(dir=".") as folder, open(f"{folder}/log.jsonl", "w") as log:
    for step in range(45):
        rows = torch.arange(step * 256, step * 256 + 256) % len(x)
        loss = nn.functional.mse_loss(model(x[rows]), y[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        log.write(json.dumps({"step": step, "loss": loss.item(), "padding": "." * 4096}) + "\n")
        log.flush()
        os.fsync(log.fileno())
