"""Outputs are kept for later, with their graphs."""

import torch
from torch import nn


def train(model, optimizer, x):
    history = []
    for step in range(40):
        rows = torch.arange(step * 128, step * 128 + 128) % len(x)
        output = model(x[rows])
        history.append(output.mean())
        loss = output.square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return history


net = nn.Sequential(nn.Linear(128, 256), nn.ReLU(), nn.Linear(256, 10))
train(net, torch.optim.SGD(net.parameters(), lr=0.1, fused=True), torch.randn(2048, 128))
