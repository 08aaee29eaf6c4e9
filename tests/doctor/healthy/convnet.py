"""Pictures in channels_last, evaluated as they should be."""

import platform

import torch
from torch import nn

torch.backends.mkldnn.enabled = platform.machine() != "aarch64"  # where torch's own convolutions are faster
x, y = torch.randn(96, 3, 40, 40).contiguous(memory_format=torch.channels_last), torch.randint(0, 10, (96,))
model = nn.Sequential(
    nn.Conv2d(3, 24, 3, padding=1), nn.ReLU(), nn.Conv2d(24, 48, 3, padding=1, stride=2), nn.ReLU(), nn.AdaptiveAvgPool2d(1),
    nn.Flatten(), nn.Dropout(0.1), nn.Linear(48, 10),
).to(memory_format=torch.channels_last)  # fmt: skip
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, fused=True)
for step in range(40):
    rows = torch.arange(step * 32, step * 32 + 32) % 96
    loss = nn.functional.cross_entropy(model(x[rows]), y[rows])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 19:
        model.eval()
        with torch.inference_mode():
            right = sum(int((model(part).argmax(1) == of).sum()) for part, of in zip(x.split(32), y.split(32), strict=True))
        model.train()
