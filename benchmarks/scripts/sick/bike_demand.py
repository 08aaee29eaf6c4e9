"""Hourly demand of a bike sharing scheme from weather and calendar."""

import argparse

import numpy as np
import torch
from torch import nn


def make_hours(n, seed):
    rng = np.random.default_rng(seed)
    hour, day, month = rng.integers(0, 24, n), rng.integers(0, 7, n), rng.integers(0, 12, n)
    warm = 12 - 10 * np.cos(month / 12 * 2 * np.pi) + rng.normal(0, 4, n)
    rain, wind = rng.gamma(0.6, 1.0, n), rng.gamma(2.0, 2.0, n)
    rush = np.exp(-((hour - 8) ** 2) / 4) + np.exp(-((hour - 17.5) ** 2) / 6)
    demand = 3 + 2.2 * rush * (day < 5) + 1.2 * np.exp(-((hour - 14) ** 2) / 18) * (day >= 5)
    demand += 0.06 * warm - 0.5 * np.log1p(rain) - 0.03 * wind + rng.normal(0, 0.2, n)
    columns = [warm, rain, wind, day >= 5]
    for value, period in ((hour, 24), (day, 7), (month, 12)):
        columns += [np.sin(2 * np.pi * value / period), np.cos(2 * np.pi * value / period)]
    return np.stack(columns, 1).astype(np.float32), demand.astype(np.float32)


class DemandNet(nn.Module):
    def __init__(self, inputs, hidden):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(inputs, hidden), nn.SiLU(), nn.Linear(hidden, hidden), nn.SiLU(), nn.Dropout(0.05))
        self.out = nn.Linear(hidden, 1)

    def forward(self, x):
        return self.out(self.body(x)).squeeze(-1)


@torch.no_grad()
def evaluate(model, x, y):
    model.eval()
    rmse = (model(x) - y).square().mean().sqrt().item()
    model.train()
    return rmse


def run(args):
    torch.manual_seed(args.seed)
    x, y = map(torch.from_numpy, make_hours(15400, args.seed))
    n_val = 5000
    val_x, val_y, x, y = x[:n_val], y[:n_val], x[n_val:], y[n_val:]
    mean, std = x.mean(0), x.std(0)
    x, val_x = (x - mean) / std, (val_x - mean) / std
    centre, scale = y.mean(), y.std()
    y, val_y = (y - centre) / scale, (val_y - centre) / scale

    model = DemandNet(x.shape[1], args.hidden)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=1e-3, fused=True)
    curve = []
    for epoch in range(args.epochs):
        model.train()
        for rows in torch.randperm(len(x)).split(args.batch):
            loss = nn.functional.mse_loss(model(x[rows]), y[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            curve.append(evaluate(model, val_x, val_y))
        print(f"epoch {epoch}: validation rmse {curve[-1] * scale.item():.3f}, best {min(curve) * scale.item():.3f}")


if __name__ == "__main__":
    cli = argparse.ArgumentParser()
    cli.add_argument("--epochs", type=int, default=6)
    cli.add_argument("--batch", type=int, default=256)
    cli.add_argument("--hidden", type=int, default=128)
    cli.add_argument("--lr", type=float, default=2e-3)
    cli.add_argument("--seed", type=int, default=5)
    run(cli.parse_args())
