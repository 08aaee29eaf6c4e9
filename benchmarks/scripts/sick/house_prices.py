"""Prices of houses from their surveys."""

from dataclasses import dataclass

import torch


@dataclass
class Config:
    epochs: int = 4
    batch: int = 200
    lr: float = 1e-3
    hidden: int = 768


def survey(n):
    x = torch.randn(n, 20)
    price = x[:, 0] * 3 + x[:, 1] * x[:, 2] + 0.1 * torch.randn(n)
    return x, price


class PriceModel(torch.nn.Module):
    def __init__(self, hidden):
        super().__init__()
        self.l1 = torch.nn.Linear(20, hidden)
        self.l2 = torch.nn.Linear(hidden, hidden)
        self.l3 = torch.nn.Linear(hidden, 1)

    def forward(self, x):
        return self.l3(torch.relu(self.l2(torch.relu(self.l1(x)))))


def run(config):
    torch.manual_seed(0)
    x, price = survey(10_000)
    model = PriceModel(config.hidden)
    optimizer = torch.optim.Adam(model.parameters(), lr=config.lr)
    for epoch in range(config.epochs):
        total = 0.0
        for rows in torch.randperm(8000).split(config.batch):
            optimizer.zero_grad()
            predicted = model(x[rows])
            loss = torch.mean((predicted - price[rows]) ** 2)
            loss.backward()
            optimizer.step()
            total += loss.item()
        with torch.no_grad():
            gap = (model(x[8000:]).flatten() - price[8000:]).abs().mean()
        print(f"epoch {epoch}: loss {total / 40:.3f}, mean gap {gap:.3f}")


run(Config())
