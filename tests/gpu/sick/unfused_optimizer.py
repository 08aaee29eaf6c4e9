"""Four hundred million weights, few samples, and AdamW weight by weight."""

import torch
from torch import nn

model = nn.Sequential(*(nn.Linear(8192, 8192) for _ in range(6))).cuda()
optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
x = torch.randn(128, 8192, device="cuda")
torch.set_float32_matmul_precision("high")
for _step in range(40):
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = (model(x) - x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
