"""model.eval() and nothing else around the validation."""

import torch
from torch import nn

x, y = torch.randn(4096, 256), torch.randint(0, 10, (4096,))
model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Dropout(0.1), nn.Linear(512, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, fused=True)


def validate():
    model.eval()
    right = 0
    for start in range(0, len(x), 256):
        right += int((model(x[start : start + 256]).argmax(1) == y[start : start + 256]).sum())
    model.train()
    return right / len(x)


for step in range(48):
    rows = torch.arange(step * 128, step * 128 + 128) % len(x)
    loss = nn.functional.cross_entropy(model(x[rows]), y[rows])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 8 == 7:
        validate()
