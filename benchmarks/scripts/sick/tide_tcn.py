"""Tide gauge readings: a dilated convolutional net predicts the level six hours ahead."""

import math

import torch
from torch import nn
from torch.nn import functional as F

WINDOW = 64
AHEAD = 6


class Residual(nn.Module):
    def __init__(self, channels, dilation):
        super().__init__()
        self.reach = 2 * dilation
        self.filter = nn.Conv1d(channels, channels, 3, dilation=dilation)
        self.mix = nn.Conv1d(channels, channels, 1)

    def forward(self, x):
        y = self.filter(F.pad(x, (self.reach, 0)))
        return x + self.mix(torch.relu(y))


class TideNet(nn.Module):
    def __init__(self, channels=24, depth=5):
        super().__init__()
        self.enter = nn.Conv1d(2, channels, 1)
        self.blocks = [Residual(channels, 2**level) for level in range(depth)]
        self.leave = nn.Linear(channels, 1)

    def forward(self, x):
        x = self.enter(x)
        for block in self.blocks:
            x = block(x)
        return self.leave(torch.relu(x[:, :, -1])).squeeze(1)


def gauge(hours):
    t = torch.arange(hours, dtype=torch.float64)
    level = sum(a * torch.sin(2 * math.pi * t / p + a) for a, p in ((1.2, 12.42), (0.5, 12.0), (0.3, 25.82), (0.2, 23.93)))
    wind = torch.zeros(hours, dtype=torch.float64)
    push = torch.randn(hours, dtype=torch.float64)
    for hour in range(1, hours):
        wind[hour] = 0.95 * wind[hour - 1] + 0.3 * push[hour]
    level = level + 0.3 * torch.tanh(wind) + 0.03 * torch.randn(hours, dtype=torch.float64)
    return torch.stack([level, wind]).float()


def cut(series):
    x = series[:, :-AHEAD].unfold(1, WINDOW, 1).permute(1, 0, 2)
    return x.contiguous(), series[0, WINDOW + AHEAD - 1 :]


def main():
    torch.manual_seed(12)
    series = gauge(3600)
    split = 2800
    mean, std = series[:, :split].mean(1, keepdim=True), series[:, :split].std(1, keepdim=True)
    series = (series - mean) / std
    train_x, train_y = cut(series[:, :split])
    test_x, test_y = cut(series[:, split:])
    model = TideNet()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3, fused=True)
    for epoch in range(5):
        model.train()
        for rows in torch.randperm(len(train_x)).split(64):
            loss = F.mse_loss(model(train_x[rows]), train_y[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            error = F.mse_loss(model(test_x), test_y).sqrt().item()
        print(f"epoch {epoch}  loss {loss.item():.4f}  rmse {error:.4f} (in standard deviations)")


if __name__ == "__main__":
    main()
