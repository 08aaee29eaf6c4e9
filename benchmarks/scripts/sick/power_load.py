"""Forecasts the load of a power grid."""

import torch
from torch import nn


class Recurrent(nn.Module):
    def __init__(self, inputs, hidden):
        super().__init__()
        self.cell = nn.LSTMCell(inputs, hidden)
        self.hidden = hidden

    def forward(self, x):
        h = c = x.new_zeros(len(x), self.hidden)
        for t in range(x.size(1)):
            h, c = self.cell(x[:, t], (h, c))
        return h


class LoadModel(nn.Module):
    def __init__(self, inputs=6, hidden=48):
        super().__init__()
        self.encoder = Recurrent(inputs, hidden)
        self.out = nn.Linear(hidden, 1)

    def forward(self, x):
        return self.out(self.encoder(x))


def main():
    torch.manual_seed(0)
    x = torch.randn(2400, 168, 6)
    y = x[:, -24:, 0].mean(1, keepdim=True)
    model = LoadModel()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    for epoch in range(2):
        for rows in torch.randperm(len(x)).split(32):
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(x[rows]), y[rows])
            loss.backward()
            optimizer.step()
        print("epoch", epoch, loss.item())


if __name__ == "__main__":
    main()
