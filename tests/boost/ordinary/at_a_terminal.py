"""A progress bar as wide as the terminal, a question that nobody answers, and a picture of the network from a trace."""

import os
import sys

import torch
import torch.nn.functional as F
from torch import nn

width = int(os.popen("stty size", "r").read().split()[1])
assert width == os.get_terminal_size().columns
try:
    input("overwrite? ")
except EOFError:
    print("no")


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


torch.manual_seed(0)
x = torch.randn(512, 16)
y = x[:, :4].argmax(1)
model = Net()
torch.jit.trace(model, x[:8])  # as a tracker's picture of the graph does: it is traced twice, and the two are compared
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for step in range(3000):
    at = step % 64 * 8
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x[at : at + 8]), y[at : at + 8])
    loss.backward()
    optimizer.step()
    sys.stdout.write("=" * (width * (step + 1) // 3000) + "\r")
