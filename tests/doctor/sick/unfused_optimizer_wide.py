"""Wide layers and few samples: AdamW as it comes goes over the weights a dozen times."""

import torch
from torch import nn

x, y = torch.randn(512, 700), torch.randn(512, 700)
model = nn.Sequential(nn.Linear(700, 1400), nn.ReLU(), nn.Linear(1400, 700))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1)


def train_step(inputs, targets):
    optimizer.zero_grad(set_to_none=True)
    loss = (model(inputs) - targets).square().mean()
    loss.backward()
    optimizer.step()
    return loss.detach()


for step in range(36):
    rows = torch.arange(step * 20, step * 20 + 20) % len(x)
    train_step(x[rows], y[rows])
