"""A recurrent cell called from a Python loop, token by token."""

import torch
from torch import nn


class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = nn.RNNCell(8, 8)
        self.out = nn.Linear(8, 3)

    def forward(self, sequence):
        state = sequence.new_zeros(len(sequence), 8)
        for moment in range(sequence.shape[1]):
            state = self.cell(sequence[:, moment], state)
        return self.out(state)


x, y = torch.randn(512, 60, 8), torch.randint(0, 3, (512,))
model = Reader()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, fused=True)
for step in range(40):
    rows = torch.arange(step * 32, step * 32 + 32) % len(x)
    loss = nn.functional.cross_entropy(model(x[rows]), y[rows])
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
