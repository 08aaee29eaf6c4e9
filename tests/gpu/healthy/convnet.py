"""bfloat16 and channels_last."""

import torch
from torch import nn

blocks = [layer for _ in range(6) for layer in (nn.Conv2d(256, 256, 3, padding=1), nn.BatchNorm2d(256), nn.ReLU())]
model = nn.Sequential(nn.Conv2d(3, 256, 3, padding=1), *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(256, 10))
model = model.cuda().to(memory_format=torch.channels_last)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, fused=True)
x = torch.randn(256, 3, 64, 64, device="cuda").contiguous(memory_format=torch.channels_last)
y = torch.randint(0, 10, (256,), device="cuda")
for _step in range(40):
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
