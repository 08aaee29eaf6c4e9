"""Traffic on roads: a few experts and a gate."""

import torch
from torch import nn


class Experts(nn.Module):
    def __init__(self, inputs, count=4, width=384):
        super().__init__()
        self.gate = nn.Linear(inputs, count)
        self.experts = [nn.Sequential(nn.Linear(inputs, width), nn.ReLU(), nn.Linear(width, 1)) for _ in range(count)]

    def forward(self, x):
        shares = self.gate(x).softmax(-1)
        answers = torch.cat([expert(x) for expert in self.experts], dim=-1)
        return (shares * answers).sum(-1)


def roads(n, generator):
    x = torch.randn(n, 30, generator=generator)
    return x, torch.where(x[:, 0] > 0, x[:, 1:5].sum(1), -x[:, 5:9].sum(1))


def main():
    generator = torch.Generator().manual_seed(6)
    x, y = roads(12_000, generator)
    torch.manual_seed(6)
    model = Experts(30)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    loss_fn = nn.MSELoss()
    for epoch in range(4):
        order = torch.randperm(10_000)
        for i in range(0, 10_000, 250):
            rows = order[i : i + 250]
            optimizer.zero_grad()
            loss = loss_fn(model(x[rows]), y[rows])
            loss.backward()
            optimizer.step()
        with torch.no_grad():
            print(epoch, "held-out loss", loss_fn(model(x[10_000:]), y[10_000:]).item())


main()
