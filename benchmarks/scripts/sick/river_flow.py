"""Tomorrow's discharge of a river from thirty days of rain, temperature and discharge."""

import numpy as np
import torch
from torch import nn

PAST = 30
SPLIT = 7000


def simulate(days, seed=4):
    rng = np.random.default_rng(seed)
    season = np.sin(2 * np.pi * np.arange(days) / 365)
    rain = rng.gamma(0.4, 6.0, days) * (1 - 0.4 * season)
    warm = 9 + 9 * season + rng.normal(0, 2.5, days)
    quick, slow = np.zeros(days), np.zeros(days)
    for day in range(1, days):
        wet = rain[day] * np.clip(1.1 - 0.02 * warm[day], 0.2, 1.0)
        quick[day] = 0.65 * quick[day - 1] + 0.25 * wet
        slow[day] = 0.985 * slow[day - 1] + 0.02 * wet
    return np.stack([rain, warm, quick + slow], axis=1)


def windows(series):
    past = np.lib.stride_tricks.sliding_window_view(series[:-1], PAST, axis=0)
    return past.reshape(len(past), -1), series[PAST:, 2]


class Discharge(nn.Module):
    def __init__(self, inputs, width=320):
        super().__init__()
        self.first = nn.Linear(inputs, width)
        self.second = nn.Linear(width, width)
        self.third = nn.Linear(width, width)
        self.last = nn.Linear(width, 1)
        self.act = nn.GELU()

    def forward(self, x):
        x = self.act(self.first(x))
        x = x + self.act(self.second(x))
        x = x + self.act(self.third(x))
        return self.last(x).squeeze(1)


def nash_sutcliffe(model, x, y):
    model.eval()
    with torch.no_grad():
        residual = (model(x) - y).square().mean()
    model.train()
    return (1 - residual / y.var()).item()


if __name__ == "__main__":
    torch.manual_seed(4)
    series = simulate(8000)
    series = (series - series[:SPLIT].mean(axis=0)) / series[:SPLIT].std(axis=0)
    past, flow = windows(series)
    past, flow = torch.from_numpy(past.copy()), torch.from_numpy(flow.copy())
    train_x, train_y = past[: SPLIT - PAST], flow[: SPLIT - PAST]
    test_x, test_y = past[SPLIT:], flow[SPLIT:]

    model = Discharge(train_x.shape[1]).double()
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4, weight_decay=1e-2, fused=True)
    for epoch in range(8):
        order = torch.randperm(len(train_x))
        for start in range(0, len(order), 256):
            rows = order[start : start + 256]
            loss = nn.functional.huber_loss(model(train_x[rows]), train_y[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch}: loss {loss.item():.4f}, NSE {nash_sutcliffe(model, test_x, test_y):.3f}")
