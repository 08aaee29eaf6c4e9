"""The losses are kept as tensors that remember their graph."""

import torch
from torch import nn

model = nn.Sequential(nn.Linear(2048, 4096), nn.ReLU(), nn.Linear(4096, 2048)).cuda().bfloat16()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, fused=True)
x = torch.randn(2048, 2048, device="cuda", dtype=torch.bfloat16)
losses = []
for _step in range(60):
    loss = (model(x) - x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss)
