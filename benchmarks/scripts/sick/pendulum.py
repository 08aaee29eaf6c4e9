"""The motion of a pendulum from recorded angles (as NumPy made them)."""

import numpy as np
import torch
from torch import nn

rng = np.random.default_rng(0)
angles = rng.normal(size=(20_000, 100))
speeds = np.sin(angles[:, :10]).sum(1, keepdims=True)
x, y = torch.from_numpy(angles), torch.from_numpy(speeds)

torch.manual_seed(0)
net = nn.Sequential(nn.Linear(100, 1024), nn.Tanh(), nn.Linear(1024, 1024), nn.Tanh(), nn.Linear(1024, 1)).to(x.dtype)
opt = torch.optim.SGD(net.parameters(), lr=0.01)
for epoch in range(1):
    for rows in torch.randperm(len(x)).split(256):
        opt.zero_grad()
        loss = (net(x[rows]) - y[rows]).square().mean()
        loss.backward()
        opt.step()
    print("epoch", epoch, loss.item())
