"""Memory is given back after every step."""

import torch
from torch import nn

model = nn.Sequential(nn.Linear(2048, 8192), nn.ReLU(), nn.Linear(8192, 2048)).cuda().bfloat16()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, fused=True)
x = torch.randn(8192, 2048, device="cuda", dtype=torch.bfloat16)
for _step in range(60):
    loss = (model(x) - x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    del loss
    torch.cuda.empty_cache()
