"""A stream of a machine's readings, that goes on from batch to batch."""

import torch
from torch import nn


class Watcher(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.GRU(8, 48, batch_first=True)
        self.out = nn.Linear(48, 8)
        self.seen = torch.zeros(16, 0, 8)
        self.state = None

    def read(self, x):
        self.seen = torch.cat([self.seen, x], 1)
        states, _ = self.rnn(self.seen)
        return states[:, -x.size(1) :]

    def forward(self, x):
        return self.out(self.read(x))


torch.manual_seed(0)
readings = torch.randn(16, 1601, 8).cumsum(1) * 0.1
model = Watcher()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
total = 0.0
for start in range(0, 1600, 16):
    x, y = readings[:, start : start + 16], readings[:, start + 1 : start + 17]
    loss = nn.functional.mse_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    total += loss.item()
    if start % 400 == 0:
        print(start, loss.item())
print("mean", total / 100)
