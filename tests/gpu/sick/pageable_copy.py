"""Large batches from ordinary memory."""

import torch
from torch import nn

batches = [torch.randn(4096, 8192) for _ in range(4)]
model = nn.Sequential(nn.Linear(8192, 256), nn.ReLU(), nn.Linear(256, 8)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, fused=True)
torch.set_float32_matmul_precision("high")
for step in range(60):
    x = batches[step % 4].cuda()
    loss = model(x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
