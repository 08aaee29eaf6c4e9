"""Classifies sets of points."""

import torch
from torch import nn


class SetNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.point = nn.Sequential(nn.Linear(3, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())
        self.out = nn.Linear(64, 4)

    def forward(self, sets):
        answers = []
        for points in sets:
            answers.append(self.out(self.point(points).max(0).values))
        return torch.stack(answers)


def shapes(n):
    y = torch.randint(0, 4, (n,))
    return torch.randn(n, 40, 3) * (1 + y[:, None, None] * 0.4), y


torch.manual_seed(0)
x, y = shapes(6400)
net = SetNet()
optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
for epoch in range(1):
    for step, rows in enumerate(torch.randperm(6400).split(64)):
        loss = nn.functional.cross_entropy(net(x[rows]), y[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 25 == 0:
            print(epoch, step, loss.item())
