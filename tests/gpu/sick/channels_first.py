"""Convolutions in bfloat16 on pictures that lie channel by channel."""

import torch
from torch import nn

blocks = [layer for _ in range(6) for layer in (nn.Conv2d(128, 128, 3, padding=1), nn.BatchNorm2d(128), nn.ReLU())]
model = nn.Sequential(
    nn.Conv2d(3, 128, 3, padding=1), *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 10)
).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, fused=True)
x, y = torch.randn(128, 3, 64, 64, device="cuda"), torch.randint(0, 10, (128,), device="cuda")
torch.backends.cudnn.benchmark = True
for _step in range(40):
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
