"""Forecasts the next reading of a group of sensors."""

import torch
from torch import nn


def windows(series, length):
    return torch.stack([series[i : i + length] for i in range(len(series) - length)]), series[length:]


class Forecaster(nn.Module):
    def __init__(self, sensors=8, hidden=96):
        super().__init__()
        self.rnn = nn.GRU(sensors, hidden, batch_first=True)
        self.out = nn.Linear(hidden, sensors)

    def forward(self, x):
        states, _ = self.rnn(x)
        return self.out(states[:, -1])


class Fit:
    def __init__(self, model, lr):
        self.model = model
        self.optimizer = torch.optim.Adam(model.parameters(), lr=lr)

    def step(self, x, y):
        loss = nn.functional.mse_loss(self.model(x), y)
        loss.backward()
        self.optimizer.zero_grad()
        self.optimizer.step()
        return loss.item()


torch.manual_seed(0)
time = torch.arange(4200)[:, None] * 0.05
series = torch.sin(time * torch.linspace(0.5, 2, 8)) + 0.05 * torch.randn(4200, 8)
x, y = windows(series, 32)
fit = Fit(Forecaster(), 1e-3)
for epoch in range(3):
    losses = [fit.step(x[rows], y[rows]) for rows in torch.randperm(3600).split(64)]
    with torch.no_grad():
        ahead = nn.functional.mse_loss(fit.model(x[3600:]), y[3600:]).item()
    print(f"epoch {epoch} train {sum(losses) / len(losses):.4f} ahead {ahead:.4f}")
