"""Monthly rent of flats from their description."""

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F


def make_flats(count, seed):
    rng = np.random.default_rng(seed)
    area = rng.lognormal(4.1, 0.35, count)
    rooms = np.clip(np.round(area / 25 + rng.normal(0, 0.6, count)), 1, 8)
    floor = rng.integers(0, 9, count)
    age = rng.gamma(2.0, 20.0, count)
    centre = rng.gamma(2.0, 2.5, count)
    lift, balcony = rng.random((2, count)) < [[0.4], [0.6]]
    rent = 260 + 9.5 * area + 30 * rooms - 1.1 * age - 35 * centre + 60 * balcony + 12 * floor * (2 * lift - 1)
    rent *= 1 + 0.25 * np.exp(-centre / 2)
    rent += rng.normal(0, 40, count)
    table = np.stack([area, rooms, floor, age, centre, lift, balcony], axis=1)
    return torch.tensor(table, dtype=torch.float32), torch.tensor(rent, dtype=torch.float32)


class RentModel(nn.Module):
    def __init__(self, columns, width=256):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(columns, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1))

    def forward(self, x):
        return self.net(x)


def main():
    torch.manual_seed(7)
    x, rent = make_flats(6400, seed=7)
    cut = 5120
    mean, std = x[:cut].mean(0), x[:cut].std(0)
    x = (x - mean) / std
    centre, spread = rent[:cut].mean(), rent[:cut].std()
    y = (rent - centre) / spread
    x_train, y_train, x_test, y_test = x[:cut], y[:cut], x[cut:], y[cut:]

    model = RentModel(x.shape[1])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=1e-2, fused=True)
    epochs, batch = 8, 128
    for epoch in range(epochs):
        model.train()
        losses = []
        for rows in torch.randperm(cut).split(batch):
            xb, yb = x_train[rows], y_train[rows]
            loss = F.mse_loss(model(xb), yb)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        model.eval()
        with torch.no_grad():
            error = (model(x_test).squeeze(1) - y_test).abs().mean() * spread
        print(f"epoch {epoch}: loss {np.mean(losses):.4f}, mean error on new flats {error:.0f} per month")


if __name__ == "__main__":
    main()
