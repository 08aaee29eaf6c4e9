"""Every layer's output is checked on the host, and the device runs dry each time."""

import torch
from torch import nn


class Checked(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4096, 4096, dtype=torch.bfloat16) for _ in range(16))

    def forward(self, x):
        for layer in self.layers:
            x = torch.relu(layer(x))
            if not torch.isfinite(x).all():
                raise ValueError("not finite")
        return x


model = Checked().cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, fused=True)
x = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)
for _step in range(60):
    loss = (model(x) - x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
