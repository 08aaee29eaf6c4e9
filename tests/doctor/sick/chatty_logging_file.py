"""A logger that writes every step through to the disk, many lines each."""

import logging
import os

import torch
from torch import nn

logger = logging.getLogger("training")
logger.setLevel(logging.INFO)
logger.propagate = False
logger.addHandler(logging.FileHandler(os.devnull))

x, y = torch.randn(2048, 64), torch.randn(2048, 1)
model = nn.Sequential(nn.Linear(64, 128), nn.Tanh(), nn.Linear(128, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, fused=True)
for step in range(45):
    rows = torch.arange(step * 256, step * 256 + 256) % len(x)
    loss = nn.functional.mse_loss(model(x[rows]), y[rows])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    for name, weight in model.named_parameters():
        for number in range(60):
            logger.info("step %d %s[%d] norm %s", step, name, number, weight.shape)
